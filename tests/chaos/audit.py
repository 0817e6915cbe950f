"""Audit a server after the attacks: nothing may be lost or left behind. Each complaint is one line."""

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import zip_longest
from multiprocessing import TimeoutError as NoAnswer
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparse_ncp.solvers import Result, Settings, solve
from sparse_ncp.solvers.tensor.threads import available_cores
from sparse_ncp.worker.contract import TERMINAL, Job
from sparse_ncp.worker.operations.cleanup import Cleanup
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from tests.chaos.greedy import Greedy
from tests.chaos.jobs import EVERYBODY, GREEDY, Accepted, Jobs
from tests.chaos.server import ChaosServer
from tests.support.api import Sent, http_client
from tests.support.jobs import same_bits
from tests.support.stack import wait_for
from tests.support.watcher import is_gapless

ENDED_SECONDS = 300.0
# Uploads of a killed API are removed once they are a minute old.
TIDY_SECONDS = 120.0
# Longest time in which runs are computed again, and how many of each study.
SOLVE_SECONDS = 180.0
RUNS_CHECKED = 20
# Empty while nothing runs or waits.
BUSY = (keys.LEASES, keys.WAITING, keys.ACTIVE, keys.QUEUED, keys.YIELDING, keys.ENDING)
# What stays when there are no jobs and no tensors: the format, counters, owners and their accounts, the workers, notes
# of deletions and of the last preparations, and Celery's own.
STANDING = (
    "ncp:format",
    "ncp:planned",
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


def audit(server: ChaosServer, jobs: Jobs, greedy: Greedy, dice: random.Random) -> Iterator[str]:
    runs = [run for study in greedy.studies for run in runs_of(server, jobs, study, dice)]
    checked = [*jobs.accepted, *runs]
    solved = solve_sample(server, checked, dice)
    for job in checked:
        yield from about(server, job, solved.get)
    yield from left_accounts(server)
    yield from left_files(server, jobs, greedy.studies)
    greedy.delete_all()
    yield from left_keys(server, jobs)
    server.stop()
    yield from left_processes(server)


def runs_of(server: ChaosServer, jobs: Jobs, study_id: str, dice: random.Random) -> list[Accepted]:
    """Return some of a study's runs that have factors, as if each had been submitted alone."""
    ended = [run.id for run in server.records.studies.runs(study_id) if run.state == "succeeded"]
    found = [server.records.jobs.get(GREEDY, id) for id in dice.sample(ended, min(RUNS_CHECKED, len(ended)))]
    return [Accepted(GREEDY, run.id, jobs.tensor(GREEDY, run.tensor_id), run.settings) for run in found]


def states(server: ChaosServer, jobs: Jobs) -> dict[str, int]:
    found = [server.records.jobs.get(job.owner, job.id).state for job in jobs.accepted]
    return {state: found.count(state) for state in sorted(TERMINAL)}


# Computing again


class Run(NamedTuple):
    """Arguments of `solve`."""

    content: bytes
    shape: tuple[int, ...]
    settings: str


@cache
def solved_again(run: Run) -> Result:
    X = np.frombuffer(run.content).reshape(run.shape)
    return solve(X, Settings.model_validate_json(run.settings), threads=1)


def run_of(accepted: Accepted, job: Job) -> Run:
    """A cancelled run is compared with one of as many iterations."""
    assert job.result is not None
    stop = accepted.settings.stop.model_copy(update={"max_iterations": job.result.iterations})
    settings = accepted.settings.model_copy(update={"stop": stop})
    return Run(accepted.tensor.tobytes(), accepted.tensor.shape, settings.model_dump_json())


def solve_sample(server: ChaosServer, jobs: Sequence[Accepted], dice: random.Random) -> dict[Run, Result]:
    """Compute again what the workers computed, in parallel, until the time is over: every second one was paused.

    That takes as long as the workers took; so of a long attack it is a sample.
    """
    found = [(one, server.records.jobs.get(one.owner, one.id)) for one in dice.sample(jobs, len(jobs))]
    ended = [(one, run_of(one, job)) for one, job in found if job.result is not None]
    paused = {one.id for one, _ in ended if was_paused(server, one.id)}
    of_paused = [run for one, run in ended if one.id in paused]
    others = [run for one, run in ended if one.id not in paused]
    runs = list(dict.fromkeys(run for pair in zip_longest(of_paused, others) for run in pair if run is not None))
    solved, started = dict[Run, Result](), time.monotonic()
    with get_context("spawn").Pool(available_cores()) as pool, suppress(NoAnswer):
        answers = pool.imap(solved_again, runs)
        for run in runs:
            solved[run] = answers.next(max(0.0, started + SOLVE_SECONDS - time.monotonic()))
    print(
        f"computed again: {len(solved)} of {len(runs)} runs, {sum(run in solved for run in of_paused)} of "
        f"{len(of_paused)} that were paused, in {time.monotonic() - started:.0f} s",
        flush=True,
    )
    return solved


# Each job


def about(
    server: ChaosServer, accepted: Accepted, solved: Callable[[Run], Result | None] = solved_again
) -> Iterator[str]:
    yield from (f"job {accepted.id}: {complaint}" for complaint in _about(server, accepted, solved))


def _about(server: ChaosServer, accepted: Accepted, solved: Callable[[Run], Result | None]) -> Iterator[str]:
    job = server.records.jobs.get(accepted.owner, accepted.id)
    if job.state == "failed":
        yield f"failed: {job.error.message if job.error else None}"
    if job.state == "cancelled" and not accepted.cancel_asked:
        yield "was cancelled without a request"
    expected = None if job.result is None else solved(run_of(accepted, job))
    if expected is not None:
        yield from _numbers(server, job, expected)
    if not is_gapless(_events(server, job.id)):
        yield "its events have a gap"
    if accepted.watcher is not None:
        yield from _watched(server, accepted)


def _numbers(server: ChaosServer, job: Job, expected: Result) -> Iterator[str]:
    assert job.result is not None
    if not same_bits(server.store.job(job.id).factors(), list(expected.factors)):
        yield f"{job.state}, but its factors are not those of solve()"
    published = tuple(row.objective for row in server.jobs.history(job.owner, job.id))
    if job.state == "cancelled":  # perhaps while it repeated what had been published; the last one may be approximate
        published, wanted = published[: job.result.iterations - 1], expected.history.objective[:-1]
    else:
        wanted = expected.history.objective
    if published != wanted:
        yield "its history is not that of solve()"


def was_paused(server: ChaosServer, job_id: str) -> bool:
    """Return whether a job has given way to others at least once."""
    return any("paused" in sent.content for sent in _events(server, job_id) if sent.kind == "state")


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


# What is left


def left_accounts(server: ChaosServer) -> Iterator[str]:
    """Once nothing runs or waits: no owner uses a worker, waits for one, or has reserved a byte."""
    with connect(server.configuration) as client:
        yield from (f"{key} is not empty" for key in BUSY if client.exists(key))
        for key in sorted(client.scan_iter(match=keys.busy("*"), count=1000)):
            yield f"{key} has {client.zrange(key, 0, -1)}, but nothing runs"
        planned = client.hgetall(keys.PLANNED)
    yield from (f"{owner} has {runs} planned runs, but no live study" for owner, runs in planned.items() if int(runs))
    for usage in server.records.stats.usages(EVERYBODY):
        if usage.reserved_bytes or usage.live_jobs or usage.live_runs or usage.live_studies:
            yield f"{usage.owner} has nothing live, but is counted with {usage}"


def left_files(
    server: ChaosServer, jobs: Jobs, studies: Sequence[str] = (), tidy_seconds: float = TIDY_SECONDS
) -> Iterator[str]:
    root = server.store.root
    with suppress(TimeoutError):
        wait_for(lambda: not list((root / "uploads").iterdir()), tidy_seconds, "abandoned uploads to go")
    yield from (f"{path.relative_to(root)} is left" for path in (root / "uploads").iterdir())
    runs = {run.id for study in studies for run in server.records.studies.runs(study)}
    known = {job.id for job in jobs.accepted} | runs
    for folder in (root / "jobs").iterdir():
        if folder.name not in known:
            yield f"folder {folder.name} belongs to no job"
        yield from (f"{path.relative_to(root)} is left" for path in folder.iterdir() if not _belongs(path))
    for folder in _rendered(server):
        if folder.name not in known.union(studies):
            yield f"rendered/{folder.name} belongs to no record"


def _rendered(server: ChaosServer) -> list[Path]:
    """Return the folders of results that are kept for the next request."""
    return [folder for folder in (server.store.root / "rendered").glob("*") if any(folder.rglob("*"))]


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
        for owner in EVERYBODY:
            for tensor in server.records.tensors.list(owner, limit=10_000).items:
                if owner == "local":
                    caller.delete(f"/v1/tensors/{tensor.id}").raise_for_status()
                else:
                    server.tensors.delete(owner, tensor.id)
    yield from (f"{path.name} is left of a tensor" for path in sorted((server.store.root / "tensors").glob("[!.]*")))
    yield from (f"rendered/{folder.name} is left" for folder in _rendered(server))
    with connect(server.configuration) as client_:
        left = sorted(str(key) for key in client_.scan_iter(count=1000))
    yield from (f"key {key} is left in Redis" for key in left if not key.startswith(STANDING))
    for usage in server.records.stats.usages(EVERYBODY):
        if usage.stored_bytes or usage.reserved_bytes or any(usage.jobs.model_dump().values()):
            yield f"{usage.owner} has nothing left, but is counted with {usage}"
