"""`ncp status` in the terminal."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.support.api import http_client, planted, submit, upload
from tests.support.stack import ROOT, server, wait_for

ENDLESS = {"stop": {"max_iterations": 10**6, "tolerance": 0}}


def status(data: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sparse_ncp.app.cli.main", "status", "--data", str(data), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_it_tells_queue_jobs_workers_disk_and_version(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1) as running, http_client(running.address) as caller:
        tensor = upload(caller, planted(30, 30, 30))
        jobs = [submit(caller, tensor["id"], **ENDLESS) for _ in range(3)]
        wait_for(lambda: caller.get(f"/v1/jobs/{jobs[0]['id']}").json()["progress"], what="progress")
        told = status(running.data)
        for job in jobs:
            caller.post(f"/v1/jobs/{job['id']}/cancel")
    assert told.returncode == 0, told.stderr
    assert f"server   sparse-ncp {version('sparse-ncp')} at {running.address}" in told.stdout
    assert re.search(r"^queue    2, the oldest waits for \d+ s$", told.stdout, re.MULTILINE)
    assert "workers  1" in told.stdout
    assert re.search(r"^disk     [0-9.]+ \w+ free; tensors 211 KiB, jobs ", told.stdout, re.MULTILINE)
    row = re.search(rf"^{jobs[0]['id']}  local +hals +(\d+)  +\S+ +(0\.\d+) +\d+ s$", told.stdout, re.MULTILINE)
    assert row is not None, told.stdout
    assert int(row[1]) > 0


def test_without_a_server_it_says_so_in_one_line(tmp_path: Path) -> None:
    told = status(tmp_path / "nothing")
    assert told.returncode == 1
    assert told.stdout == ""
    assert told.stderr.count("\n") == 1
    assert f"no server runs on the folder {tmp_path / 'nothing'}" in told.stderr
    assert "ncp serve" in told.stderr
    assert not (tmp_path / "nothing").exists()


def test_a_redis_that_does_not_answer_is_named_not_the_folder(tmp_path: Path) -> None:
    (tmp_path / "tensors").mkdir()
    told = status(tmp_path, "--redis-url", "redis://127.0.0.1:1/0")
    assert told.returncode == 1
    assert told.stderr.startswith("ncp: Redis cannot be used: ")
    assert told.stderr.endswith("; start it, or correct --redis-url or NCP_REDIS_URL\n")
    assert told.stderr.count("\n") == 1


def test_after_a_server_has_ended_it_says_so(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1) as running:
        note = running.data / "address"
        kept = note.read_bytes()
        assert status(running.data).returncode == 0
    assert not note.exists()
    assert status(running.data).returncode == 1
    note.write_bytes(kept)  # as a server leaves it that was killed
    assert status(running.data).returncode == 1
