"""Response headers restrict what browsers do, and paths reach only the files of the page."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from sparse_ncp.worker.config import Configuration
from tests.support.api import Api, finished, http_client, planted, refused, running_api, submit, upload
from tests.support.raw_http import exchanged
from tests.support.stack import server, wait_for

HOME = "https://lab.example"
FOREIGN = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}


@pytest.fixture(scope="module")
def cors_api(configuration: Configuration) -> Iterator[Api]:
    """A server that pages of one other origin may call."""
    with running_api(configuration.model_copy(update={"cors_origins": f"{HOME}, http://localhost:3000"})) as made:
        yield made


@pytest.mark.parametrize("path", ["/", "/docs", "/healthz", "/v1/methods", "/v1/jobs/none", "/nothing"])
def test_every_answer_has_the_security_headers(client: httpx.Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


def test_a_failure_inside_has_them_too(configuration: Configuration) -> None:
    def broken(app: FastAPI) -> None:
        @app.get("/broken")
        def fail() -> None:
            raise RuntimeError

    with running_api(configuration, broken) as running, http_client(running.address) as caller:
        answer = caller.get("/broken")
    refused(answer, 500)
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]


def test_the_docs_may_run_their_own_script_only(client: httpx.Client) -> None:
    policy = client.get("/docs").headers["content-security-policy"]
    scripts = re.search(r"script-src ([^;]*)", policy)
    assert scripts is not None
    assert re.fullmatch(r"'self' 'sha256-[^']+'", scripts[1])


def test_without_being_named_no_origin_is_let_in(client: httpx.Client) -> None:
    answer = client.get("/v1/jobs", headers=FOREIGN)
    assert "access-control-allow-origin" not in answer.headers
    preflight = client.options("/v1/jobs", headers={**FOREIGN, "Access-Control-Request-Method": "POST"})
    refused(preflight, 405)


def test_a_named_origin_is_let_in_and_no_other(cors_api: Api) -> None:
    with http_client(cors_api.address) as caller:
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
def test_a_page_from_elsewhere_cannot_act(client: httpx.Client, site: str) -> None:
    job = submit(client, upload(client, planted(3, 3))["id"])
    path = f"/v1/jobs/{job['id']}/cancel"
    refused(client.post(path, headers={**FOREIGN, "Sec-Fetch-Site": site}), 403, "foreign-page")
    assert client.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued"
    assert (
        client.post(path, headers={"Origin": str(client.base_url), "Sec-Fetch-Site": "same-origin"}).status_code == 202
    )


def test_a_page_from_elsewhere_cannot_act_from_an_old_browser(client: httpx.Client) -> None:
    """One that sends its Origin and nothing more; from here, the Origin is the server's own."""
    for origin in ("https://elsewhere.example", "null", "http://127.0.0.1:1", "http://[", "http://127.0.0.1:x", ""):
        answer = client.post("/v1/jobs", headers={"Origin": origin}, json={})
        refused(answer, 403, "foreign-page")
    own = str(client.base_url).rstrip("/")
    assert client.post("/v1/jobs", headers={"Origin": own}, json={}).status_code == 422


def test_the_port_of_a_scheme_may_be_left_out(client: httpx.Client) -> None:
    for origin, host in (("http://127.0.0.1", "127.0.0.1:80"), ("https://127.0.0.1:443", "127.0.0.1")):
        assert client.post("/v1/jobs", headers={"Origin": origin, "Host": host}, json={}).status_code == 422
    refused(client.post("/v1/jobs", headers={"Origin": "https://localhost", "Host": "localhost:80"}, json={}), 403)


@pytest.mark.parametrize("path", ["/v1/jobs/", "/v1/tensors/", "/healthz/", "/docs/"])
def test_a_trailing_slash_is_never_redirected(client: httpx.Client, path: str) -> None:
    """A redirect would repeat whatever Host the caller sent."""
    answer = client.get(path, headers={"Host": "elsewhere.example"} if not path.startswith("/v1") else {})
    refused(answer, 404)
    assert "location" not in answer.headers


def test_two_hosts_are_one_too_many(api: Api) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n"
    assert exchanged(api, request).startswith(b"HTTP/1.1 400 ")


def test_a_page_of_a_named_origin_can_act(cors_api: Api) -> None:
    with http_client(cors_api.address) as caller:
        headers = {"Origin": HOME, "Sec-Fetch-Site": "cross-site"}
        refused(caller.post("/v1/jobs/none/cancel", headers=headers), 404)


def test_every_get_route_answers_head_without_a_body(api_with_worker: Api, client_with_worker: httpx.Client) -> None:
    tensor = upload(client_with_worker, planted(5, 4, 3))["id"]
    stop = {"max_iterations": 50}  # a history of many pages has no length
    job = submit(client_with_worker, tensor, stability=True, stop=stop)
    finished(client_with_worker, job["id"])
    grid = {"kind": "compare", "ranks": [2], "methods": ["hals"], "betas": [0.0], "repeats": 1}
    study = client_with_worker.post("/v1/studies", json={"tensor_id": tensor, **grid}).json()["id"]
    of_study = f"/v1/studies/{study}"
    wait_for(lambda: client_with_worker.get(of_study).json()["state"] == "succeeded", 60, "the study to end")
    names = {
        "job_id": job["id"],
        "study_id": study,
        "tensor_id": job["tensor_id"],
        "mode": "1",
        "owner": "local",
        "plot": "components",
    }
    paths = {
        route.path
        for route in api_with_worker.app.state.routes
        if isinstance(route, APIRoute) and "GET" in (route.methods or ())
    }
    assert len(paths) >= 12
    for path in sorted(paths):
        asked = path.format(**names) + (f"?other={job['id']}" if path.endswith("/comparison") else "")
        head = client_with_worker.head(asked)
        assert head.status_code == (404 if path.startswith("/v1/admin") else 200), path
        assert head.content == b""
        if "events" not in path and path != "/metrics":
            assert head.headers["content-length"] == str(len(client_with_worker.get(asked).content))


WAYS_OUT = ["..", "../..", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%5c..", "%00", ".", "%2fetc%2fpasswd"]


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize(
    "path",
    ["/v1/jobs/{}/factors", "/v1/jobs/{}/history", "/v1/jobs/{}", "/v1/tensors/{}/content", "/docs/assets/{}"],
)
def test_no_path_leads_out_of_the_store(api: Api, path: str, way: str) -> None:
    request = f"GET {path.format(way)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = exchanged(api, request.encode())
    assert int(answer.split()[1]) in {400, 404, 405}
    assert b"root:" not in answer


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "a\x00b", "x/../../y"])
def test_no_name_in_a_body_leads_out_of_the_store(client: httpx.Client, name: str) -> None:
    body = {"tensor_id": name, "rank": 2, "method": "hals"}
    refused(client.post("/v1/jobs", json=body), 404)
    tensor = upload(client, planted(3, 3), name=name.replace("\x00", ""))
    refused(client.post("/v1/jobs", json={**body, "tensor_id": tensor["id"], "initial": {"job_id": name}}), 404)


def test_every_file_is_for_this_account_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with (
            server(tmp_path, min_free_bytes=1, checkpoint_seconds=0.01) as running,
            http_client(running.address) as caller,
        ):
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
    return any((data / "jobs").glob("*/checkpoint-*/manifest.json"))


def modes(data: Path) -> dict[tuple[str, str], int]:
    """Map every path below the data folder to its mode."""
    found = {("data", "."): data.lstat().st_mode}
    for path in data.rglob("*"):
        name = path.relative_to(data)
        try:
            found[name.parts[0], str(name)] = path.lstat().st_mode
        except FileNotFoundError:
            continue
    return found
