"""What browsers may do with our answers, and what paths may reach."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from tests.app.api import Api, api, client, finished, planted, refused, submit, upload
from tests.app.wire import exchanged
from tests.stack import server, wait_for
from worker.configuration import Configuration

HOME = "https://lab.example"
FOREIGN = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}


@pytest.fixture(scope="module")
def homely(configuration: Configuration) -> Iterator[Api]:
    """A server that pages of one other origin may call."""
    with api(configuration.model_copy(update={"cors_origins": f"{HOME}, http://localhost:3000"})) as made:
        yield made


@pytest.mark.parametrize("path", ["/", "/docs", "/healthz", "/v1/methods", "/v1/jobs/none", "/nothing"])
def test_every_answer_has_the_security_headers(front: httpx.Client, path: str) -> None:
    headers = front.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


def test_a_failure_inside_has_them_too(configuration: Configuration) -> None:
    def broken(app: Any) -> None:
        @app.get("/broken")
        def fail() -> None:
            raise RuntimeError

    with api(configuration, broken) as running, client(running.address) as caller:
        answer = caller.get("/broken")
    refused(answer, 500)
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]


def test_the_docs_may_run_their_own_script_only(front: httpx.Client) -> None:
    policy = front.get("/docs").headers["content-security-policy"]
    scripts = re.search(r"script-src ([^;]*)", policy)
    assert scripts is not None
    assert re.fullmatch(r"'self' 'sha256-[^']+'", scripts[1])


def test_without_being_named_no_origin_is_let_in(front: httpx.Client) -> None:
    answer = front.get("/v1/jobs", headers=FOREIGN)
    assert "access-control-allow-origin" not in answer.headers
    preflight = front.options("/v1/jobs", headers={**FOREIGN, "Access-Control-Request-Method": "POST"})
    refused(preflight, 405)


def test_a_named_origin_is_let_in_and_no_other(homely: Api) -> None:
    with client(homely.address) as caller:
        asked = {"Origin": HOME, "Access-Control-Request-Method": "POST"}
        preflight = caller.options("/v1/jobs", headers={**asked, "Access-Control-Request-Headers": "authorization"})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == HOME
        refusal = caller.get("/v1/jobs/none", headers={"Origin": HOME})
        assert refusal.headers["access-control-allow-origin"] == HOME
        assert "Location" in refusal.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in refusal.headers
        assert "access-control-allow-origin" not in caller.get("/v1/jobs", headers=FOREIGN).headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_from_elsewhere_cannot_act(front: httpx.Client, site: str) -> None:
    job = submit(front, upload(front, planted(3, 3))["id"])
    path = f"/v1/jobs/{job['id']}/cancel"
    refused(front.post(path, headers={**FOREIGN, "Sec-Fetch-Site": site}), 403, "foreign-page")
    assert front.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued"
    assert front.post(path, headers={"Origin": str(front.base_url), "Sec-Fetch-Site": "same-origin"}).status_code == 202


def test_a_page_of_a_named_origin_can_act(homely: Api) -> None:
    with client(homely.address) as caller:
        headers = {"Origin": HOME, "Sec-Fetch-Site": "cross-site"}
        refused(caller.post("/v1/jobs/none/cancel", headers=headers), 404)


def test_every_get_route_answers_head_without_a_body(busy: Api, lab: httpx.Client) -> None:
    job = submit(lab, upload(lab, planted(5, 4, 3))["id"])
    finished(lab, job["id"])
    names = {"job_id": job["id"], "tensor_id": job["tensor_id"], "mode": "1", "owner": "local"}
    paths = {route.path for route in busy.app.state.routes if isinstance(route, APIRoute) and "GET" in route.methods}
    assert len(paths) >= 12
    for path in sorted(paths):
        asked = path.format(**names)
        head = lab.head(asked)
        assert head.status_code == (404 if path.startswith("/v1/admin") else 200), path
        assert head.content == b""
        if "events" not in path and path != "/metrics":
            assert head.headers["content-length"] == str(len(lab.get(asked).content))


WAYS_OUT = ["..", "../..", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%5c..", "%00", ".", "%2fetc%2fpasswd"]


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize(
    "path",
    ["/v1/jobs/{}/factors", "/v1/jobs/{}/history", "/v1/jobs/{}", "/v1/tensors/{}/content", "/docs/assets/{}"],
)
def test_no_path_leads_out_of_the_store(idle: Api, path: str, way: str) -> None:
    request = f"GET {path.format(way)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = exchanged(idle, request.encode())
    assert int(answer.split()[1]) in {400, 404, 405}
    assert b"root:" not in answer


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "a\x00b", "x/../../y"])
def test_no_name_in_a_body_leads_out_of_the_store(front: httpx.Client, name: str) -> None:
    body = {"tensor_id": name, "rank": 2, "method": "hals"}
    refused(front.post("/v1/jobs", json=body), 404)
    tensor = upload(front, planted(3, 3), name=name.replace("\x00", ""))
    refused(front.post("/v1/jobs", json={**body, "tensor_id": tensor["id"], "initial": {"job_id": name}}), 404)


def test_every_file_is_for_this_account_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with server(tmp_path, min_free_bytes=1, checkpoint_seconds=0.01) as running, client(running.address) as caller:
            job = submit(
                caller, upload(caller, planted(30, 30, 30))["id"], stop={"max_iterations": 300, "tolerance": 0}
            )
            seen = wait_for(lambda: modes(running.data) if _has_checkpoint(running.data) else None, what="a checkpoint")
            finished(caller, job["id"])
            seen |= modes(running.data)
    finally:
        os.umask(before)
    assert {kind for kind, _ in seen} >= {"tensors", "jobs", "redis", "lock", "address"}
    wrong = {name: oct(mode) for (_, name), mode in seen.items() if stat.S_IMODE(mode) not in _allowed(mode)}
    assert wrong == {}


def _allowed(mode: int) -> set[int]:
    return {0o700} if stat.S_ISDIR(mode) or stat.S_ISSOCK(mode) else {0o600}


def _has_checkpoint(data: Path) -> bool:
    return any((data / "jobs").glob("*/checkpoint-*"))


def modes(data: Path) -> dict[tuple[str, str], int]:
    """Of everything below the data folder, by kind and name."""
    found = {("data", "."): data.lstat().st_mode}
    for path in data.rglob("*"):
        name = path.relative_to(data)
        try:
            found[name.parts[0], str(name)] = path.lstat().st_mode
        except FileNotFoundError:
            continue
    return found
