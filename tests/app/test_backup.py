"""A copy of the data folder is the whole server: restored elsewhere, jobs and factors are there and runs go on."""

import re
import subprocess
from pathlib import Path

import httpx
import numpy as np

from tests.app.api import client, events, finished, planted, submit, upload
from tests.stack import ROOT, server
from tests.worker.running import LONG

GUIDE = (ROOT / "docs" / "running-a-server.md").read_text()


def published(heading: str) -> str:
    found = re.search(rf"### {heading}\n.*?```sh\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None, f"the guide shows no commands under {heading!r}"
    return found[1]


def run(commands: str, data: Path, backup: Path) -> None:
    script = commands.replace("/var/lib/ncp", str(data)).replace("/backup/ncp", str(backup))
    script = re.sub(r"^sudo systemctl .*\n", "", script, flags=re.MULTILINE)  # the server is stopped or running already
    subprocess.run(["bash", "-eu", "-c", script.replace("sudo ", "")], check=True)


def factors(lab: httpx.Client, job: str) -> bytes:
    return lab.get(f"/v1/jobs/{job}/factors").raise_for_status().content


def test_a_folder_copied_while_the_server_is_stopped_restores_everything(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with server(first, min_free_bytes=0) as running, client(running.address) as lab:
        tensor = upload(lab, planted(6, 5, 4), "kept")
        job = finished(lab, submit(lab, tensor["id"])["id"])
        kept, told = factors(lab, job["id"]), list(events(lab, job["id"]))
    run(published("With the server stopped"), first / "data", tmp_path / "backup")
    run(published("Restore"), second / "data", tmp_path / "backup")
    with server(second, min_free_bytes=0) as running, client(running.address) as lab:
        assert lab.get(f"/v1/tensors/{tensor['id']}").json() == tensor
        assert lab.get(f"/v1/jobs/{job['id']}").json() == job
        assert factors(lab, job["id"]) == kept
        assert list(events(lab, job["id"])) == told
        assert finished(lab, submit(lab, tensor["id"])["id"])["state"] == "succeeded"


def test_a_folder_copied_while_jobs_run_restores_them_too(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    settings = {"min_free_bytes": 0, "checkpoint_seconds": 0.2}
    with server(first, **settings) as running, client(running.address) as lab:
        tensor = upload(lab, planted(40, 40, 40))["id"]
        done = finished(lab, submit(lab, tensor)["id"])["id"]
        live = submit(lab, tensor, **LONG)["id"]
        stream = events(lab, live)
        next(sent for sent in stream if sent.kind == "progress" and sent.content["iteration"] > 200)
        run(published("While it runs"), first / "data", tmp_path / "backup")
        assert lab.get(f"/v1/jobs/{live}").json()["state"] == "running", "the copy was to be taken meanwhile"
        whole = np.frombuffer(factors(lab, done), np.uint8)
        finished(lab, live)
        expected = factors(lab, live)
    run(published("Restore"), second / "data", tmp_path / "backup")
    with server(second, **settings) as running, client(running.address) as lab:
        assert np.array_equal(np.frombuffer(factors(lab, done), np.uint8), whole)
        assert finished(lab, live)["state"] == "succeeded"
        assert factors(lab, live) == expected
