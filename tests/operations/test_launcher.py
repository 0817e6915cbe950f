"""`ncp serve`: one command starts, watches and stops everything."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from sparse_ncp.app.server.embedded_redis import find_server
from sparse_ncp.worker.broker import wake_worker
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Job
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.store.local import LocalStore
from tests.support.jobs import ended, job_process, put, queue_job, random_tensor, reached, request
from tests.support.processes import configuration_of, part
from tests.support.stack import ROOT, Server, descendants, interrupt, server, wait_for

LONG = {"rank": 8, "method": "apg", "stop": {"max_iterations": 2000, "tolerance": 0}}


def serve(data: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`ncp serve` that is expected to refuse."""
    command = [sys.executable, "-m", "sparse_ncp.app.cli.main", "serve", "--data", str(data), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def long_job(running: Server) -> Job:
    """Submitted, and on its way."""
    records = ExecutionRecords.of(configuration_of(running))
    tensor = put(records, LocalStore(running.data), random_tensor(40, 40, 40))
    job, _ = queue_job(records, "local", request(tensor, **LONG))
    wake_worker(configuration_of(running))
    reached(records, job, 20)
    return job


def test_the_launcher_loads_neither_solvers_nor_celery() -> None:
    """It must start fast, and what it loads stays in memory beside the worker and the API."""
    script = (
        "import sys, sparse_ncp.app.server.launcher; "
        "print({'numpy', 'celery', 'fastapi', 'sparse_ncp.solvers.settings'} & {*sys.modules})"
    )
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=20)[1]


def test_it_is_ready_soon_and_ctrl_c_hands_running_jobs_back(tmp_path: Path) -> None:
    started = time.monotonic()
    with server(tmp_path) as running:
        # Under five seconds on an idle machine; a test may have to share it.
        assert time.monotonic() - started < 20
        assert httpx.get(f"{running.address}/readyz").status_code == 200
        for folder in (running.data, running.data / "redis", running.data / "tensors"):
            assert folder.stat().st_mode & 0o077 == 0
        job = long_job(running)
        below = descendants(running.process.pid)
        interrupt(running.process)
        assert running.process.wait(60) == 0
        assert gone(below)
    with server(tmp_path) as running:
        records = ExecutionRecords.of(configuration_of(running))
        done = ended(records, job)
        assert (done.state, done.attempt) == ("succeeded", 1)


def test_killing_the_launcher_leaves_no_orphan_and_its_job_goes_on(tmp_path: Path) -> None:
    with server(tmp_path, checkpoint_seconds=0.05) as running:
        job = long_job(running)
        computing = job_process(part(running, "worker").pid)
        below = descendants(running.process.pid)
        assert computing in below
        running.process.kill()
        running.process.wait()
        assert gone(below)
    started = time.monotonic()
    with server(tmp_path) as running:
        done = ended(ExecutionRecords.of(configuration_of(running)), job)
        assert (done.state, done.attempt) == ("succeeded", 2)
        assert done.started_at is not None
        assert time.monotonic() - started < 60


def test_a_port_in_use_is_one_clear_line_and_exit_code_two(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = serve(tmp_path / "data", "--port", str(port))
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        f"ncp: port {port} on 127.0.0.1 cannot be used (Address already in use); choose another with --port or NCP_PORT"
    ]
    assert not (tmp_path / "data").exists()


def test_a_start_that_takes_too_long_is_ended_and_names_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCP_START_SECONDS", "0.001")
    refused = serve(tmp_path / "data", "--port", "0")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == (
        "ncp: the server is not ready after 0.001 s; see its messages above, or raise NCP_START_SECONDS"
    )


def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    """Removing the lock file does not let a second server in."""
    with server(tmp_path) as running:
        for lock_is_there in (True, False):
            if not lock_is_there:
                (running.data / "lock").unlink()
            refused = serve(running.data, "--port", "0")
            assert refused.returncode == 2
            assert len(refused.stderr.splitlines()) == 1
            assert "another server uses the data folder" in refused.stderr
        assert httpx.get(f"{running.address}/healthz").status_code == 200


def test_a_folder_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = serve(tmp_path / "file", "--port", "0")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1


def test_nothing_uses_redis_or_files_before_redis_is_ready(tmp_path: Path) -> None:
    """Worker and API are loaded by then, and wait: jobs of an earlier run are taken back before one is claimed."""
    slow = tmp_path / "redis-server"
    slow.write_text(f'#!/bin/sh\nsleep 5\nexec {find_server(Configuration())} "$@"\n')
    slow.chmod(0o700)
    with server(tmp_path, redis_server=slow) as running:
        reported = running.log.read_text()
        assert "listening" in reported
        assert "WARNING" not in reported
        assert "ERROR" not in reported


def test_a_redis_that_does_not_start_is_one_line_and_leaves_no_process(tmp_path: Path) -> None:
    environment = Configuration(data=tmp_path, port=0, redis_server=Path("/bin/false")).environment()
    command = [sys.executable, "-m", "sparse_ncp.app.cli.main", "serve"]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    below = wait_for(lambda: descendants(process.pid), what="the worker and the API")
    reported = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert reported.startswith("ncp: Redis did not start")
    assert reported.count("\n") == 1
    assert gone(below)


def test_a_part_that_dies_is_started_again(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        for name in ("api", "worker", "valkey"):
            before = part(running, name)
            before.send_signal(signal.SIGKILL)
            wait_for(lambda: part(running, name).pid != before.pid, what=f"a new {name}")  # noqa: B023
        wait_for(lambda: _is_ready(running), what="the server to be ready again")
        assert "will be restarted" in running.log.read_text()
        job = long_job(running)
        assert ended(ExecutionRecords.of(configuration_of(running)), job).state == "succeeded"


def _is_ready(running: Server) -> bool:
    try:
        return httpx.get(f"{running.address}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_asked_twice_it_does_not_wait(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        worker = part(running, "worker")
        worker.suspend()
        below = descendants(running.process.pid)
        interrupt(running.process)
        wait_for(lambda: len(descendants(running.process.pid)) < len(below), what="the API to stop")
        interrupt(running.process)
        assert running.process.wait(20) == 0
        assert gone(below)
