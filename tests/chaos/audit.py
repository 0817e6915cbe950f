"""Audit a server after the attacks: nothing may be lost or left behind. Each complaint is one line."""

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from sparse_ncp.solvers import Result, Settings, solve
from sparse_ncp.worker.contract import TERMINAL, Job
from sparse_ncp.worker.operations.cleanup import Cleanup
from sparse_ncp.worker.records.redis.connection import connect
from tests.chaos.jobs import OWNERS, Accepted, Jobs
from tests.chaos.server import ChaosServer
from tests.support.api import Sent, http_client
from tests.support.jobs import same_bits
from tests.support.stack import wait_for
from tests.support.watcher import is_gapless

ENDED_SECONDS = 300.0
# Uploads of a killed API are removed once they are a minute old.
TIDY_SECONDS = 120.0
# What stays when there are no jobs and no tensors: counters, owners and their accounts, the workers, notes of deletions
# and of the last preparations, and Celery's own.
STANDING = (
    "ncp:sequence",
    "ncp:serving",
    "ncp:served",
    "ncp:workers",
    "ncp:counts",
    "ncp:owners",
    "ncp:usage:",
    "ncp:share:",
    "ncp:floor",
    "ncp:slots",
    "ncp:discarded",
    "ncp:tidied",
    "ncp:preparing",
    "ncp:broker:",
)


def all_ended(server: ChaosServer, jobs: Jobs) -> None:
    wait_for(lambda: not jobs.live(), ENDED_SECONDS, "every accepted job to end")
    wait_for(lambda: not server.records.jobs.unsettled(), TIDY_SECONDS, "every history to be stored")


def cleaned_up(server: ChaosServer) -> list[str]:
    """Return what a cleanup removed; nothing else removes files of an attempt killed after losing its claim."""
    return [str(removed) for removed in Cleanup(server.records, server.store, server.configuration).run()]


def audit(server: ChaosServer, jobs: Jobs) -> Iterator[str]:
    for job in jobs.accepted:
        yield from about(server, job)
    yield from left_files(server, jobs)
    yield from left_keys(server, jobs)
    server.stop()
    yield from left_processes(server)


def states(server: ChaosServer, jobs: Jobs) -> dict[str, int]:
    found = [server.records.jobs.get(job.owner, job.id).state for job in jobs.accepted]
    return {state: found.count(state) for state in sorted(TERMINAL)}


def about(server: ChaosServer, accepted: Accepted) -> Iterator[str]:
    yield from (f"job {accepted.id}: {complaint}" for complaint in _about(server, accepted))


def _about(server: ChaosServer, accepted: Accepted) -> Iterator[str]:
    job = server.records.jobs.get(accepted.owner, accepted.id)
    if job.state == "failed":
        yield f"failed: {job.error.message if job.error else None}"
    if job.state == "cancelled" and not accepted.cancel_asked:
        yield "was cancelled without a request"
    if job.result is not None:
        yield from _numbers(server, accepted, job)
    if not is_gapless(_events(server, job.id)):
        yield "its events have a gap"
    if accepted.watcher is not None:
        yield from _watched(server, accepted)


def _numbers(server: ChaosServer, accepted: Accepted, job: Job) -> Iterator[str]:
    """A cancelled run is compared with one of as many iterations."""
    assert job.result is not None
    stop = accepted.settings.stop.model_copy(update={"max_iterations": job.result.iterations})
    settings = accepted.settings.model_copy(update={"stop": stop})
    expected = _solved(accepted.tensor.tobytes(), accepted.tensor.shape, settings.model_dump_json())
    if not same_bits(server.store.job(job.id).factors(), list(expected.factors)):
        yield f"{job.state}, but its factors are not those of solve()"
    published = tuple(row.objective for row in server.jobs.history(job.owner, job.id))
    if job.state == "cancelled":  # perhaps while it repeated what had been published; the last one may be approximate
        published, wanted = published[: job.result.iterations - 1], expected.history.objective[:-1]
    else:
        wanted = expected.history.objective
    if published != wanted:
        yield "its history is not that of solve()"


@cache
def _solved(content: bytes, shape: tuple[int, ...], settings: str) -> Result:
    return solve(np.frombuffer(content).reshape(shape), Settings.model_validate_json(settings), threads=1)


def _events(server: ChaosServer, job_id: str) -> list[Sent]:
    seen: list[Sent] = []
    while page := server.jobs.events_after(job_id, seen[-1].id if seen else None):
        seen += [Sent(event.id, event.kind, _content(event.payload)) for event in page]
    return seen


def _content(payload: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(payload)
    return found


def _watched(server: ChaosServer, accepted: Accepted) -> Iterator[str]:
    assert accepted.watcher is not None
    seen = accepted.watcher.until_end()
    if [sent.id for sent in seen] != [event.id for event in _events(server, accepted.id)]:
        yield "its watcher did not receive every event exactly once"


def left_files(server: ChaosServer, jobs: Jobs, tidy_seconds: float = TIDY_SECONDS) -> Iterator[str]:
    root = server.store.root
    with suppress(TimeoutError):
        wait_for(lambda: not list((root / "uploads").iterdir()), tidy_seconds, "abandoned uploads to go")
    yield from (f"{path.relative_to(root)} is left" for path in (root / "uploads").iterdir())
    known = {job.id for job in jobs.accepted}
    for folder in (root / "jobs").iterdir():
        if folder.name not in known:
            yield f"folder {folder.name} belongs to no job"
        yield from (f"{path.relative_to(root)} is left" for path in folder.iterdir() if not _belongs(path))


def _belongs(path: Path) -> bool:
    """Checkpoints only where a job was cancelled before it had a result."""
    final = any(path.parent.glob("factors-*"))
    if path.name.startswith(("checkpoint-", "partial-")):
        return not final
    return path.name in ("history", "source.json", "diagnostics.json") or path.name.startswith("factors-")


def left_processes(server: ChaosServer) -> Iterator[str]:
    """Once the server has stopped."""
    yield from (f"process {process.pid} is left: {process.cmdline()}" for process in server.processes())


def left_keys(server: ChaosServer, jobs: Jobs) -> Iterator[str]:
    """Delete everything, and look what remains."""
    for job in jobs.accepted:
        server.jobs.delete(job.owner, job.id)
    with http_client(server.address) as caller:
        for owner in OWNERS:
            for tensor in server.records.tensors.list(owner, limit=10_000).items:
                if owner == "local":
                    caller.delete(f"/v1/tensors/{tensor.id}").raise_for_status()
                else:
                    server.tensors.delete(owner, tensor.id)
    yield from (f"{path.name} is left of a tensor" for path in sorted((server.store.root / "tensors").glob("[!.]*")))
    with connect(server.configuration) as client_:
        left = sorted(str(key) for key in client_.scan_iter(count=1000))
    yield from (f"key {key} is left in Redis" for key in left if not key.startswith(STANDING))
    for usage in server.records.stats.usages(OWNERS):
        if usage.stored_bytes or any(usage.jobs.model_dump().values()):
            yield f"{usage.owner} has nothing left, but is counted with {usage}"
