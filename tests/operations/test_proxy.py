"""The nginx configuration of docs/how-to/running-a-server.md does what it says, in a real nginx where there is one."""

from pathlib import Path

import httpx
import numpy as np

from sparse_ncp.worker.config import Configuration
from tests.support.api import events, http_client, npy, planted, refused, running_api, submit, upload
from tests.support.jobs import LONG
from tests.support.languages import missing_tool
from tests.support.machine.proxy import NGINX, nginx
from tests.support.stack import server


def test_the_published_configuration_carries_uploads_streams_and_downloads(tmp_path: Path) -> None:
    if NGINX is None:
        missing_tool("nginx is not installed")
    tensor = planted(40, 40, 40)
    with (
        server(tmp_path, min_free_bytes=0, root_path="/ncp", trusted_proxies="127.0.0.1") as running,
        nginx(tmp_path, running.address) as address,
        http_client(address) as client_with_worker,
    ):
        large = npy(np.random.default_rng(0).random((2000, 1000)))
        assert client_with_worker.post("v1/tensors", content=large).status_code == 201
        stored = client_with_worker.post(
            "v1/tensors", content=(npy(tensor)[place : place + 70_000] for place in range(0, 512_128, 70_000))
        )
        assert stored.status_code == 201, stored.text
        assert stored.headers["location"] == f"/ncp/v1/tensors/{stored.json()['id']}"
        job = submit(client_with_worker, stored.json()["id"], **LONG)["id"]
        stream = events(client_with_worker, f"{job}")
        assert next(stream).kind == "state"
        seen = next(sent for sent in stream if sent.kind == "progress")
        assert client_with_worker.get(f"v1/jobs/{job}").json()["state"] == "running", (
            "the events came only when all was over"
        )
        assert seen.content["iteration"] >= 1
        assert list(stream)[-1].kind == "end"
        assert client_with_worker.get("").headers["content-type"] == "text/html; charset=utf-8"
        script = client_with_worker.get("static/vendor/plotly.min.js")
        assert (script.status_code, script.headers["content-encoding"]) == (200, "gzip")
        assert client_with_worker.get(f"v1/jobs/{job}/factors").status_code == 200
        assert client_with_worker.get(f"v1/tensors/{stored.json()['id']}/content").content == npy(tensor)
        refused(client_with_worker.get("v1/jobs/none"), 404)
    assert not [path for path in (tmp_path / "client_body").rglob("*") if path.is_file()]


def test_addresses_begin_with_the_path_that_the_proxy_shows(configuration: Configuration) -> None:
    with (
        running_api(configuration.model_copy(update={"root_path": "/lab/ncp"})) as below,
        http_client(below.address) as client_with_worker,
    ):
        tensors = [upload(client_with_worker, planted(3, 3, seed=seed)) for seed in range(2)]
        stored = client_with_worker.post("/v1/tensors", content=npy(planted(3, 3)))
        assert stored.headers["location"] == f"/lab/ncp/v1/tensors/{stored.json()['id']}"
        page = client_with_worker.get("/v1/tensors?limit=1")
        assert page.headers["link"].startswith("</lab/ncp/v1/tensors?limit=1&cursor=")
        answer = client_with_worker.post("/v1/jobs", json={"tensor_id": tensors[0]["id"], "rank": 1, "method": "hals"})
        assert answer.headers["location"] == f"/lab/ncp/v1/jobs/{answer.json()['id']}"
        assert client_with_worker.get("/openapi.json").json()["servers"] == [{"url": "/lab/ncp"}]


def test_without_a_proxy_addresses_begin_at_the_root(client: httpx.Client) -> None:
    answer = client.post("/v1/tensors", content=npy(planted(3, 3)))
    assert answer.headers["location"] == f"/v1/tensors/{answer.json()['id']}"
