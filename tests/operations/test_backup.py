"""A copy of the data folder is a complete backup: restored elsewhere, it has jobs and factors, and runs continue."""

import re
import subprocess
from pathlib import Path

import httpx
import numpy as np

from tests.support.api import events, finished, http_client, planted, submit, upload
from tests.support.jobs import LONG
from tests.support.stack import ROOT, server, wait_for

GUIDE = (ROOT / "docs" / "how-to" / "running-a-server.md").read_text()


def published(heading: str) -> str:
    found = re.search(rf"### {heading}\n.*?```sh\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None, f"the guide has no commands under {heading!r}"
    return found[1]


def run(commands: str, data: Path, backup: Path) -> None:
    script = commands.replace("/var/lib/ncp", str(data)).replace("/backup/ncp", str(backup))
    script = re.sub(r"^sudo systemctl .*\n", "", script, flags=re.MULTILINE)  # the server is stopped or running already
    subprocess.run(["bash", "-eu", "-c", script.replace("sudo ", "")], check=True)


def factors(client_with_worker: httpx.Client, job: str) -> bytes:
    return client_with_worker.get(f"/v1/jobs/{job}/factors").raise_for_status().content


def test_a_folder_copied_while_the_server_is_stopped_restores_everything(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with server(first, min_free_bytes=0) as running, http_client(running.address) as client_with_worker:
        path = f"/v1/tensors/{upload(client_with_worker, planted(6, 5, 4), 'held')['id']}"
        wait_for(lambda: client_with_worker.get(path).json()["zeros"] is not None, 20, "its zeros to be inspected")
        tensor = client_with_worker.get(path).json()
        job = finished(client_with_worker, submit(client_with_worker, tensor["id"])["id"])
        kept, recorded = factors(client_with_worker, job["id"]), list(events(client_with_worker, job["id"]))
    run(published("With the server stopped"), first / "data", tmp_path / "backup")
    run(published("Restore"), second / "data", tmp_path / "backup")
    with server(second, min_free_bytes=0) as running, http_client(running.address) as client_with_worker:
        assert client_with_worker.get(f"/v1/tensors/{tensor['id']}").json() == tensor
        assert client_with_worker.get(f"/v1/jobs/{job['id']}").json() == job
        assert factors(client_with_worker, job["id"]) == kept
        assert list(events(client_with_worker, job["id"])) == recorded
        assert finished(client_with_worker, submit(client_with_worker, tensor["id"])["id"])["state"] == "succeeded"


def test_a_folder_copied_while_jobs_run_restores_them_too(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    settings = {"min_free_bytes": 0, "checkpoint_seconds": 0.2}
    with server(first, **settings) as running, http_client(running.address) as client_with_worker:
        tensor = upload(client_with_worker, planted(40, 40, 40))["id"]
        done = finished(client_with_worker, submit(client_with_worker, tensor)["id"])["id"]
        live = submit(client_with_worker, tensor, **LONG)["id"]
        stream = events(client_with_worker, live)
        next(sent for sent in stream if sent.kind == "progress" and sent.content["iteration"] > 200)
        run(published("While it runs"), first / "data", tmp_path / "backup")
        assert client_with_worker.get(f"/v1/jobs/{live}").json()["state"] == "running", (
            "the copy must be taken while the job runs"
        )
        whole = np.frombuffer(factors(client_with_worker, done), np.uint8)
        finished(client_with_worker, live)
        expected = factors(client_with_worker, live)
    run(published("Restore"), second / "data", tmp_path / "backup")
    with server(second, **settings) as running, http_client(running.address) as client_with_worker:
        assert np.array_equal(np.frombuffer(factors(client_with_worker, done), np.uint8), whole)
        assert finished(client_with_worker, live)["state"] == "succeeded"
        assert factors(client_with_worker, live) == expected
