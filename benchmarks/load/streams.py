"""A thousand event clients with ten events a second each: latency of an event, and cost for the API."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.load.figure import Figure, at_most, milliseconds
from benchmarks.load.parts import Front, front
from benchmarks.load.queues import add_tensor
from sparse_ncp.worker.contract import Claim, JobRequest, Progress
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.jobs import Submission

CLIENTS, JOBS = 1000, 10
EVENTS_PER_SECOND = 10
SECONDS = 30
LATE_MILLISECONDS = 100.0
FLAT_MEGABYTES = 8.0


def measure(on_step: Callable[[], object]) -> Iterator[Figure]:
    with front(lease_seconds=600) as running:
        records = ExecutionRecords.of(running.configuration)
        claims = _running_jobs(records, running)
        delays, megabytes, busy = _watched(running, records, claims, on_step)
    expected = CLIENTS * EVENTS_PER_SECOND * SECONDS
    yield Figure(f"events delivered to {CLIENTS:,} clients in {SECONDS} s", f"{len(delays):,}",
                 f"{expected:,}", len(delays) == expected)  # fmt: skip
    yield Figure("an event's way, p50", f"{milliseconds(delays, 50):.1f} ms")
    yield at_most("an event's way, p99", milliseconds(delays, 99), LATE_MILLISECONDS, "ms")
    yield Figure("computing time of the API for one event to one client", f"{1e6 * busy / len(delays):.0f} µs")
    grown = megabytes[-1] - megabytes[len(megabytes) // 4]
    yield at_most(f"growth of the API's memory meanwhile (of {megabytes[-1]:.0f} MB)", grown, FLAT_MEGABYTES, "MB")


def _computing_seconds(running: Front) -> float:
    times = running.process.cpu_times()
    return times.user + times.system


def _running_jobs(records: ExecutionRecords, running: Front) -> list[Claim]:
    """Submit and claim jobs; this process plays the worker, with the same calls."""
    tensor = add_tensor(records, running.configuration, "local")
    request = JobRequest(rank=2, method="hals", tensor_id=tensor)
    records.jobs.submit_many([Submission("local", request)] * JOBS)
    claims = [records.claims.claim("load") for _ in range(JOBS)]
    return [claim for claim in claims if claim is not None]


def _watched(
    running: Front, records: ExecutionRecords, claims: Sequence[Claim], on_step: Callable[[], object]
) -> tuple[list[float], list[float], float]:
    ids = [claim.job_id for claim in claims]
    arguments = [str(running.port), str(SECONDS + 3), str(CLIENTS), *ids]
    command = [sys.executable, "-m", "benchmarks.load.watchers", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watchers:
        assert watchers.stdout is not None
        assert watchers.stdout.readline() == "connected\n"
        before = _computing_seconds(running)
        megabytes = list(_publish(running, records, claims, on_step))
        busy = _computing_seconds(running) - before
        delays: list[float] = json.loads(watchers.stdout.read())
    return delays, megabytes, busy


def _publish(
    running: Front, records: ExecutionRecords, claims: Sequence[Claim], on_step: Callable[[], object]
) -> Iterator[float]:
    """Publish ten events a second to each job, evenly spread, and yield the API's memory once a second."""
    time.sleep(1)
    began = time.perf_counter()
    pace = 1 / EVENTS_PER_SECOND / len(claims)
    for turn in range(SECONDS * EVENTS_PER_SECOND * len(claims)):
        time.sleep(max(0.0, began + turn * pace - time.perf_counter()))
        iteration, place = divmod(turn, len(claims))
        row = Progress(iteration=iteration + 1, objective=1.0, relative_error=0.5, fit=0.5, seconds=time.time())
        records.claims.publish(claims[place], [row])
        if turn % (EVENTS_PER_SECOND * len(claims)) == 0:
            yield running.process.memory_info().rss / 1e6
            on_step()
