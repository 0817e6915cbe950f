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


def test_it_shows_queue_jobs_workers_disk_and_version(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1) as running, http_client(running.address) as caller:
        tensor = upload(caller, planted(30, 30, 30))
        jobs = [submit(caller, tensor["id"], **ENDLESS) for _ in range(3)]
        wait_for(lambda: caller.get(f"/v1/jobs/{jobs[0]['id']}").json()["progress"], what="progress")
        reported = status(running.data)
        for job in jobs:
            caller.post(f"/v1/jobs/{job['id']}/cancel")
    assert reported.returncode == 0, reported.stderr
    assert f"server   sparse-ncp {version('sparse-ncp')} at {running.address}" in reported.stdout
    assert re.search(r"^queue    2, the oldest waits for \d+ s$", reported.stdout, re.MULTILINE)
    assert "workers  1" in reported.stdout
    assert re.search(r"^disk     [0-9.]+ \w+ free; tensors 211 KiB, jobs ", reported.stdout, re.MULTILINE)
    row = re.search(rf"^{jobs[0]['id']}  local +hals +(\d+)  +\S+ +(0\.\d+) +\d+ s$", reported.stdout, re.MULTILINE)
    assert row is not None, reported.stdout
    assert int(row[1]) > 0


def test_without_a_server_it_says_so_in_one_line(tmp_path: Path) -> None:
    reported = status(tmp_path / "nothing")
    assert reported.returncode == 1
    assert reported.stdout == ""
    assert reported.stderr.count("\n") == 1
    assert f"no server runs on the folder {tmp_path / 'nothing'}" in reported.stderr
    assert "ncp serve" in reported.stderr
    assert not (tmp_path / "nothing").exists()


def test_a_redis_that_does_not_answer_is_named_not_the_folder(tmp_path: Path) -> None:
    (tmp_path / "tensors").mkdir()
    reported = status(tmp_path, "--redis-url", "redis://127.0.0.1:1/0")
    assert reported.returncode == 1
    assert reported.stderr.startswith("ncp: Redis cannot be used: ")
    assert reported.stderr.endswith("; start it, or correct --redis-url or NCP_REDIS_URL\n")
    assert reported.stderr.count("\n") == 1


def test_after_a_server_has_ended_it_says_so(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1) as running:
        note = running.data / "address"
        kept = note.read_bytes()
        assert status(running.data).returncode == 0
    assert not note.exists()
    assert status(running.data).returncode == 1
    note.write_bytes(kept)  # as a server leaves it that was killed
    assert status(running.data).returncode == 1
