"""The audit of `make chaos` reports every kind of violation: each is made here, on an idle server."""

import fcntl
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from tests.chaos import audit
from tests.chaos.audit import (
    about,
    all_ended,
    left_accounts,
    left_files,
    left_keys,
    left_processes,
    run_of,
    solve_sample,
    solved_again,
)
from tests.chaos.jobs import Accepted, Jobs
from tests.chaos.server import ChaosServer
from tests.support.jobs import same_bits
from tests.support.processes import part
from tests.support.stack import Server, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosServer]:
    made = ChaosServer(tmp_path_factory.mktemp("server"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def jobs(server: ChaosServer) -> Jobs:
    """Until one has a watcher; all have ended."""
    made = Jobs(server, random.Random(604))
    while not any(job.watcher for job in made.accepted):
        made.submit()
    all_ended(server, made)
    return made


@pytest.fixture
def job(jobs: Jobs) -> Accepted:
    return next(job for job in jobs.accepted if job.watcher)


def test_a_dead_child_that_was_not_waited_for_hides_no_other(tmp_path: Path) -> None:
    """Else a launcher with one would seem to have no worker."""
    script = (
        "import subprocess, sys\n"
        "children = [subprocess.Popen([sys.executable, '-c', text]) for text in ('', 'input()')]\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as launcher:
        children = psutil.Process(launcher.pid).children
        wait_for(lambda: [child.status() for child in children()].count(psutil.STATUS_ZOMBIE), what="a dead child")
        assert part(Server("", launcher, tmp_path, tmp_path), "input()").is_running()
        assert launcher.stdin is not None
        launcher.stdin.close()
        launcher.wait(30)
        with pytest.raises(RuntimeError, match="ended with 0"):
            part(Server("", launcher, tmp_path, tmp_path), "worker")


@contextmanager
def changed(path: Path, change: Callable[[Path], None]) -> Iterator[None]:
    before = path.read_bytes()
    change(path)
    yield
    path.write_bytes(before)


def folder(server: ChaosServer, job: Accepted) -> Path:
    return server.store.root / "jobs" / job.id


def test_there_is_nothing_to_complain_of(server: ChaosServer, jobs: Jobs) -> None:
    assert [complaint for job in jobs.accepted for complaint in about(server, job)] == []
    assert list(left_files(server, jobs)) == []


def test_an_altered_factor(server: ChaosServer, job: Accepted) -> None:
    def alter(path: Path) -> None:
        with np.load(path) as stored:
            arrays = dict(stored)
        arrays["A1"][0, 0] = np.nextafter(arrays["A1"][0, 0], np.inf)
        np.savez(path, **arrays)

    with changed(next(folder(server, job).glob("factors-*")) / "factors.npz", alter):
        assert list(about(server, job)) == [f"job {job.id}: succeeded, but its factors are not those of solve()"]


def test_an_iteration_that_is_missing_in_the_history(server: ChaosServer, job: Accepted) -> None:
    with changed(
        folder(server, job) / "history" / "rows.npy", lambda path: np.save(path, np.delete(np.load(path), 3, axis=0))
    ):
        assert f"job {job.id}: its history is not that of solve()" in list(about(server, job))


def test_an_event_that_is_missing_in_the_stream(server: ChaosServer, job: Accepted) -> None:
    def without_end(path: Path) -> None:
        path.write_text(json.dumps([change for change in json.loads(path.read_text()) if change["kind"] != "end"]))

    with changed(folder(server, job) / "history" / "changes.json", without_end):
        assert f"job {job.id}: its events have a gap" in list(about(server, job))


def test_an_event_that_a_watching_client_missed(server: ChaosServer, job: Accepted) -> None:
    assert job.watcher is not None
    missed = job.watcher.seen.pop(2)
    assert list(about(server, job)) == [f"job {job.id}: its watcher did not receive every event exactly once"]
    job.watcher.seen.insert(2, missed)


@pytest.mark.parametrize(
    ("state", "complaint"), [("failed", "failed: None"), ("cancelled", "was cancelled without a request")]
)
def test_a_job_that_ended_otherwise_than_it_should(
    server: ChaosServer, job: Accepted, state: str, complaint: str
) -> None:
    with connect(server.configuration) as redis:
        redis.hset(keys.job(job.id), "state", state)
        assert f"job {job.id}: {complaint}" in list(about(server, job))
        redis.hset(keys.job(job.id), "state", "succeeded")


@pytest.mark.parametrize("name", [".factors-1.half", "checkpoint-1-7-abc.npz", "initial"])
def test_a_file_that_is_left_in_the_folder_of_a_job(server: ChaosServer, jobs: Jobs, job: Accepted, name: str) -> None:
    left = folder(server, job) / name
    left.touch()
    assert list(left_files(server, jobs)) == [f"jobs/{job.id}/{name} is left"]
    left.unlink()


def test_a_folder_that_belongs_to_no_job(server: ChaosServer, jobs: Jobs) -> None:
    stray = server.store.root / "jobs" / "stray"
    stray.mkdir()
    assert list(left_files(server, jobs)) == ["folder stray belongs to no job"]
    stray.rmdir()


def test_an_export_of_a_record_that_is_gone(server: ChaosServer, jobs: Jobs) -> None:
    server.store.rendered.save("deleted", "digest", b"factors", None).file.close()
    assert list(left_files(server, jobs)) == ["rendered/deleted belongs to no record"]
    server.store.rendered.discard("deleted")


def test_what_remains_of_jobs_in_the_accounts_of_owners(server: ChaosServer, jobs: Jobs) -> None:
    assert list(left_accounts(server)) == []
    with connect(server.configuration) as redis:
        redis.zadd(keys.busy("ann"), {"dead": 1})
        redis.hset(keys.PLANNED, "bob", 3)
        redis.hincrby(keys.usage("bob"), "reserved_bytes", 8)
        busy, planned, reserved = left_accounts(server)
        redis.delete(keys.busy("ann"))
        redis.hdel(keys.PLANNED, "bob")
        redis.hincrby(keys.usage("bob"), "reserved_bytes", -8)
    assert busy == "ncp:busy:ann has ['dead'], but nothing runs"
    assert planned == "bob has 3 planned runs, but no live study"
    assert reserved.startswith("bob has nothing live, but is counted with")


def test_runs_are_computed_again_in_parallel_within_a_time(
    server: ChaosServer, jobs: Jobs, job: Accepted, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(job, server.records.jobs.get(job.owner, job.id))
    solved = solve_sample(server, jobs.accepted, random.Random(1))
    assert same_bits(list(solved[run].factors), list(solved_again(run).factors))
    monkeypatch.setattr(audit, "SOLVE_SECONDS", 0.0)
    assert solve_sample(server, jobs.accepted, random.Random(1)) == {}


def test_an_upload_that_never_ends(server: ChaosServer, jobs: Jobs) -> None:
    path = server.store.root / "uploads" / "endless"
    with path.open("wb") as upload:
        fcntl.flock(upload, fcntl.LOCK_EX)
        assert list(left_files(server, jobs, tidy_seconds=0.1)) == ["uploads/endless is left"]
    path.unlink()


def test_a_key_that_is_left_in_redis_and_a_count_that_is_wrong(server: ChaosServer, jobs: Jobs) -> None:
    """The last one that needs the jobs: they are deleted."""
    with connect(server.configuration) as redis:
        redis.set("ncp:users:unknown", 1)
        redis.hincrby(keys.usage("ann"), "tensor_bytes", 8)
    key, count = left_keys(server, jobs)
    assert key == "key ncp:users:unknown is left in Redis"
    assert count.startswith("ann has nothing left, but is counted with")


def test_a_process_that_outlives_the_server(server: ChaosServer) -> None:
    server.stop()
    assert list(left_processes(server)) == []
    environment = {**os.environ, "NCP_DATA": str(server.running.data)}
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as stray:
        wait_for(lambda: list(left_processes(server)), what="a complaint")
        assert list(left_processes(server)) == [f"process {stray.pid} is left: {command}"]
        stray.communicate(b"\n")
