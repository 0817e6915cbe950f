"""The nginx configuration of docs/running-a-server.md does what it says, in a real nginx where there is one."""

import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.app.api import api, client, events, npy, planted, refused, submit, upload
from tests.stack import ROOT, server, wait_for
from tests.worker.running import LONG
from worker.configuration import Configuration
from worker.process import start, stop

GUIDE = (ROOT / "docs" / "running-a-server.md").read_text()
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


def published() -> str:
    found = re.search(r"```nginx\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None, "the guide shows no configuration"
    return found[1]


@contextmanager
def nginx(folder: Path, address: str) -> Iterator[str]:
    """On a free port without TLS, its files in a folder of its own; otherwise as published."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = published().replace("listen 443 ssl;", f"listen 127.0.0.1:{port};").replace("http://127.0.0.1:8000", address)
    site = re.sub(r"\n *ssl_.*", "", site)
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    lines = f"daemon off;\nuser root;\npid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{site}}}\n"
    (folder / "nginx.conf").write_text(lines)
    process = start([str(NGINX), "-p", str(folder), "-e", str(folder / "errors"), "-c", str(folder / "nginx.conf")])
    try:
        wait_for(lambda: process.poll() is not None or _answers(port), 20, "nginx")
        assert process.poll() is None, (folder / "errors").read_text()
        yield f"http://127.0.0.1:{port}/ncp"
    finally:
        stop(process, 10)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.skipif(NGINX is None, reason="there is no nginx on this machine")
def test_the_published_configuration_carries_uploads_streams_and_downloads(tmp_path: Path) -> None:
    tensor = planted(40, 40, 40)
    with (
        server(tmp_path, min_free_bytes=0, root_path="/ncp") as running,
        nginx(tmp_path, running.address) as address,
        client(address) as lab,
    ):
        large = npy(np.random.default_rng(0).random((2000, 1000)))
        assert lab.post("v1/tensors", content=large).status_code == 201
        stored = lab.post(
            "v1/tensors", content=(npy(tensor)[place : place + 70_000] for place in range(0, 512_128, 70_000))
        )
        assert stored.status_code == 201, stored.text
        assert stored.headers["location"] == f"/ncp/v1/tensors/{stored.json()['id']}"
        job = submit(lab, stored.json()["id"], **LONG)["id"]
        stream = events(lab, f"{job}")
        assert next(stream).kind == "state"
        seen = next(sent for sent in stream if sent.kind == "progress")
        assert lab.get(f"v1/jobs/{job}").json()["state"] == "running", "the events came only when all was over"
        assert seen.content["iteration"] >= 1
        assert list(stream)[-1].kind == "end"
        assert lab.get(f"v1/jobs/{job}/factors").status_code == 200
        assert lab.get(f"v1/tensors/{stored.json()['id']}/content").content == npy(tensor)
        refused(lab.get("v1/jobs/none"), 404)
    assert not [path for path in (tmp_path / "client_body").rglob("*") if path.is_file()]


def test_addresses_begin_with_the_path_that_the_proxy_shows(configuration: Configuration) -> None:
    with api(configuration.model_copy(update={"root_path": "/lab/ncp"})) as below, client(below.address) as lab:
        tensors = [upload(lab, planted(3, 3, seed=seed)) for seed in range(2)]
        page = lab.get("/v1/tensors?limit=1")
        assert page.headers["link"].startswith("</lab/ncp/v1/tensors?limit=1&cursor=")
        answer = lab.post("/v1/jobs", json={"tensor_id": tensors[0]["id"], "rank": 1, "method": "hals"})
        assert answer.headers["location"] == f"/lab/ncp/v1/jobs/{answer.json()['id']}"
        assert lab.get("/openapi.json").json()["servers"] == [{"url": "/lab/ncp"}]


def test_without_a_proxy_addresses_begin_at_the_root(front: httpx.Client) -> None:
    answer = front.post("/v1/tensors", content=npy(planted(3, 3)))
    assert answer.headers["location"] == f"/v1/tensors/{answer.json()['id']}"
