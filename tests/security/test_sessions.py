"""Signing in with a browser: a key becomes a session in a cookie, which ends with the key and serves no other site."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest

from sparse_ncp.app.auth import sessions
from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.app.auth.sessions import COOKIE, Sessions
from sparse_ncp.app.streaming import broadcast
from sparse_ncp.worker.config import Configuration
from tests.support.api import Api, holder, planted, refused, running_api, submit, upload
from tests.support.stack import embedded_redis, wait_for

HOME = "https://page.example"


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    with embedded_redis(tmp_path_factory.mktemp("sessions"), min_free_bytes=1, keep_alive_seconds=0.2) as made:
        yield made


@pytest.fixture
def configuration(shared_redis: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """With a data folder of its own, and many attempts: all tests come from one address."""
    monkeypatch.setattr("sparse_ncp.app.routes.account.ATTEMPTS_PER_SECOND", 1000.0)
    return shared_redis.model_copy(update={"data": tmp_path / "data", "cors_origins": HOME})


@pytest.fixture
def api(configuration: Configuration) -> Iterator[Api]:
    with running_api(configuration, keys=True) as running:
        yield running


@pytest.fixture
def key(configuration: Configuration) -> str:
    return ApiKeys(configuration.data).create("ann")


@contextmanager
def browser(api: Api, key: str) -> Iterator[httpx.Client]:
    """Signed in, and as a browser sends where its requests come from."""
    with holder(api.address, None) as made:
        made.headers.update({"Origin": api.address, "Sec-Fetch-Site": "same-origin"})
        answer = made.post("/v1/session", json={"key": key})
        assert answer.status_code == 201, answer.text
        yield made


def cookie_of(answer: httpx.Response) -> "dict[str, str | bool]":
    parsed = SimpleCookie(answer.headers["set-cookie"])[COOKIE]
    return {"value": parsed.value, **{name: value for name, value in parsed.items() if value}}


def test_a_key_becomes_a_cookie_that_no_script_and_no_other_site_can_use(api: Api, key: str) -> None:
    with holder(api.address, None) as anonymous:
        assert anonymous.get("/v1/session").json() == {
            "required": True,
            "owner": None,
            "admin": False,
            "expires_at": None,
        }
        answer = anonymous.post("/v1/session", json={"key": f" {key}\n"})
        assert answer.status_code == 201, answer.text
        cookie = cookie_of(answer)
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/")
        assert "secure" not in cookie
        assert "domain" not in cookie
        assert cookie["max-age"] == str(12 * 3600)
        assert key not in answer.text + str(answer.headers)
        reported = answer.json()
        assert (reported["required"], reported["owner"], reported["admin"]) == (True, "ann", False)
        assert anonymous.get("/v1/session").json() == reported
        tensor = upload(anonymous, planted(3, 2))["id"]
    with holder(api.address, key) as ann:
        assert ann.get(f"/v1/tensors/{tensor}").status_code == 200
        assert ann.get("/v1/session").json() == {**reported, "expires_at": None}


def test_the_server_keeps_neither_the_key_nor_the_token(api: Api, configuration: Configuration, key: str) -> None:
    with browser(api, key) as ann:
        token = ann.cookies[COOKIE]
    folder = configuration.data / "sessions"
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in configuration.data.rglob("*.json"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert key not in path.read_text() + path.name
        assert token not in path.read_text() + path.name
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("headers", [{"Origin": "https://lab.example"}, {"X-Forwarded-Proto": "https"}])
def test_behind_tls_and_below_a_path_the_cookie_is_secure_and_for_that_path(
    configuration: Configuration, key: str, headers: dict[str, str]
) -> None:
    below = configuration.model_copy(update={"root_path": "/ncp", "trusted_proxies": "127.0.0.1"})
    with running_api(below, keys=True) as api, holder(api.address, None) as anonymous:
        sent = {**headers, "Host": "lab.example", "Sec-Fetch-Site": "same-origin"}
        answer = anonymous.post("/v1/session", json={"key": key}, headers=sent)
        assert answer.status_code == 201, answer.text
        assert (cookie_of(answer)["secure"], cookie_of(answer)["path"]) == (True, "/ncp")
        gone = anonymous.delete("/v1/session", headers=sent)
        assert (cookie_of(gone)["path"], cookie_of(gone)["max-age"]) == ("/ncp", "0")


def test_a_session_ends_with_a_sign_out_for_everybody_who_has_the_cookie(api: Api, key: str) -> None:
    with browser(api, key) as ann, holder(api.address, None) as thief:
        thief.cookies.set(COOKIE, ann.cookies[COOKIE])
        assert thief.get("/v1/jobs").status_code == 200
        assert ann.delete("/v1/session").status_code == 204
        assert COOKIE not in ann.cookies
        refused(ann.get("/v1/jobs"), 401, "no-key")
        refused(thief.get("/v1/jobs"), 401, "session-ended")
        assert thief.get("/v1/session").json()["owner"] is None
        assert ann.delete("/v1/session").status_code == 204


def test_a_session_ends_with_its_key_even_if_another_of_that_name_is_made(
    api: Api, configuration: Configuration, key: str
) -> None:
    keys = ApiKeys(configuration.data)
    with browser(api, key) as ann:
        keys.revoke("ann")
        problem = refused(ann.get("/v1/jobs"), 401, "session-ended")
        assert "sign in" in problem["remedy"]
        keys.create("ann")
        refused(ann.get("/v1/jobs"), 401, "session-ended")


def test_a_session_ends_when_its_time_is_up(configuration: Configuration, key: str) -> None:
    short = configuration.model_copy(update={"session_hours": 1 / 3600})
    with running_api(short, keys=True) as api, browser(api, key) as ann:
        token = ann.cookies[COOKIE]

        def is_over() -> bool:
            return ann.get("/v1/jobs", headers={"Cookie": f"{COOKIE}={token}"}).status_code == 401

        wait_for(is_over, 20, "the session to end")


def test_an_open_event_stream_ends_with_its_session(api: Api, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "IDENTIFY_SECONDS", 0.2)
    with browser(api, key) as ann:
        job = submit(ann, upload(ann, planted(3, 2))["id"])["id"]
        with ann.stream("GET", f"/v1/jobs/{job}/events", timeout=20) as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith("event")) == "event: state"
            ann.delete("/v1/session")
            rest = list(lines)
        assert "event: end" not in rest


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:9"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": HOME},
    {"Origin": HOME, "Sec-Fetch-Site": "cross-site"},
    {"Origin": "https://evil.example", "Authorization": "Basic YTpi"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_nothing_is_changed_by_a_page_of_another_site(api: Api, key: str, headers: dict[str, str]) -> None:
    with browser(api, key) as ann:
        job = submit(ann, upload(ann, planted(3, 2), "mine")["id"])
        for name in ("Origin", "Sec-Fetch-Site"):
            del ann.headers[name]
        tries: list[tuple[str, str, Any]] = [
            ("POST", f"/v1/jobs/{job['id']}/cancel", None),
            ("PATCH", f"/v1/tensors/{job['tensor_id']}", {"name": "theirs"}),
            ("PUT", f"/v1/tensors/{job['tensor_id']}/axes", []),
            ("DELETE", f"/v1/tensors/{job['tensor_id']}", None),
            ("DELETE", "/v1/session", None),
        ]
        for method, path, body in tries:
            refused(ann.request(method, path, json=body, headers=headers), 403, "foreign-page")
        assert ann.get(f"/v1/jobs/{job['id']}").json() == job
        assert ann.get(f"/v1/tensors/{job['tensor_id']}").json()["name"] == "mine"


@pytest.mark.parametrize("headers", FOREIGN)
def test_no_page_of_another_site_signs_a_browser_in(api: Api, key: str, headers: dict[str, str]) -> None:
    """Otherwise a browser could be signed in to another owner's session unnoticed."""
    allowed = headers.get("Origin") == HOME
    with holder(api.address, None) as anonymous:
        answer = anonymous.post("/v1/session", json={"key": key}, headers=headers)
        assert answer.status_code == (201 if allowed else 403)
        form = anonymous.post("/v1/session", data={"key": key})
        refused(form, 415)


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": "own"}])
def test_the_page_itself_and_programs_with_a_cookie_may_act(api: Api, key: str, headers: dict[str, str]) -> None:
    sent = {name: api.address if value == "own" else value for name, value in headers.items()}
    with browser(api, key) as ann:
        for name in ("Origin", "Sec-Fetch-Site"):
            del ann.headers[name]
        ann.headers.update(sent)
        assert upload(ann, planted(3, 2))["id"]


def test_a_key_in_the_request_comes_before_the_cookie(api: Api, configuration: Configuration, key: str) -> None:
    bobs = ApiKeys(configuration.data).create("bob")
    with browser(api, key) as ann:
        assert ann.get("/v1/session", headers={"Authorization": f"Bearer {bobs}"}).json()["owner"] == "bob"
        refused(ann.get("/v1/jobs", headers={"Authorization": "Bearer ncp_wrong"}), 401, "unknown-key")
        assert ann.get("/v1/session", headers={"Authorization": "Basic YTpi"}).json()["owner"] == "ann"


@pytest.mark.parametrize("wrong", ["ncp_wrong", "../../keys", "x" * 200])
def test_a_wrong_key_begins_no_session(api: Api, configuration: Configuration, key: str, wrong: str) -> None:
    with holder(api.address, None) as anonymous:
        answer = anonymous.post("/v1/session", json={"key": wrong})
        assert wrong not in refused(answer, 401, "unknown-key")["detail"]
        assert "set-cookie" not in answer.headers
        assert refused(anonymous.post("/v1/session", json={"key": "x" * 201}), 422)["errors"][0]["field"] == "key"
        assert refused(anonymous.post("/v1/session", json={}), 422)["errors"][0]["field"] == "key"
        for token in ("wrong", "../x", key, "%00", '"quoted"'):
            refused(anonymous.get("/v1/jobs", headers={"Cookie": f"{COOKIE}={token}"}), 401, "session-ended")
    assert not (configuration.data / "sessions").exists()


def test_attempts_are_limited(api: Api, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparse_ncp.app.routes.account.ATTEMPTS_PER_SECOND", 0.0001)  # one attempt at once
    with holder(api.address, None) as anonymous:
        answers = [anonymous.post("/v1/session", json={"key": "ncp_wrong"}) for _ in range(3)]
        late = refused(anonymous.post("/v1/session", json={"key": key}), 429, "too-fast")
        assert "Retry" in late["remedy"]
    assert answers[-1].status_code == 429


def test_an_open_server_has_no_sign_in(configuration: Configuration) -> None:
    with running_api(configuration, keys=True) as api, holder(api.address, None) as anybody:
        reported = anybody.get("/v1/session").json()
        assert (reported["required"], reported["owner"], reported["admin"], reported["expires_at"]) == (
            False,
            "local",
            True,
            None,
        )
        refused(anybody.post("/v1/session", json={"key": "ncp_any"}), 409, "no-sign-in")
        assert anybody.delete("/v1/session").status_code == 204
        refused(anybody.get("/v1/session", headers={"Host": "evil.example"}), 421)


def test_the_oldest_session_of_a_key_gives_way_and_ended_ones_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 3)
    short, long = Sessions(tmp_path, 1e-9), Sessions(tmp_path, 1)
    short.create("a" * 64)
    other = long.create("b" * 64)
    tokens = [long.create("a" * 64) for _ in range(5)]
    assert [long.find(token) is not None for token in tokens] == [False, False, True, True, True]
    assert long.find(other) is not None
    assert len(list((tmp_path / "sessions").glob("*.json"))) == 4


def test_a_damaged_session_is_none(tmp_path: Path) -> None:
    made = Sessions(tmp_path, 1)
    token = made.create("a" * 64)
    next((tmp_path / "sessions").glob("*.json")).write_text("{")
    assert made.find(token) is None
