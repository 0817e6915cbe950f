"""Statistics: usage of each owner, request tokens, and the queue of the server."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparse_ncp.worker.contract import Allowance, Job, JobCounts, Usage
from sparse_ncp.worker.records.jobs import read_job
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection
from sparse_ncp.worker.records.redis.versions import is_readable

# Seconds' worth of requests that may be sent at once.
WINDOW_SECONDS = 10


@dataclass(frozen=True)
class QueueStats:
    """The queue of the server, its workers, and counters of events."""

    queued: int
    oldest_queued_seconds: float
    running: int
    live_workers: int
    counts: Mapping[str, int]


class OwnerStats(NamedTuple):
    """Answer of the script about an owner; `counts` has names and values in turn."""

    counts: Sequence[str]
    queued: int
    running: Sequence[str]
    live_jobs: int
    live_studies: int
    live_runs: int


class StatsRecords:
    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def usage(self, owner: str) -> Usage:
        return self.usages([owner])[0]

    def usages(self, owners: Sequence[str]) -> list[Usage]:
        """Return the usage of each owner, in two round trips for all of them."""
        found = [OwnerStats(*one) for one in self._redis.script("stats/usage", *owners)]
        running = [id for one in found for id in one.running]
        spent = self._redis.commands(("HMGET", keys.job(id), "progress", "spent") for id in running)
        seconds = {
            id: max(json.loads(progress)["seconds"] if progress else 0.0, float(before or 0))
            for id, (progress, before) in zip(running, spent, strict=True)
        }
        return [_usage(owner, one, seconds) for owner, one in zip(owners, found, strict=True)]

    def owners(self) -> set[str]:
        """Return all owners who have ever stored a tensor."""
        return set(self._redis.command("SMEMBERS", keys.OWNERS))

    def take_request_token(self, owner: str, per_second: float) -> Allowance:
        """Count one request, unless it exceeds the rate limit."""
        quota = max(1, math.floor(per_second * WINDOW_SECONDS))
        granted, left, wait = self._redis.script("stats/take_request", owner, quota, repr(per_second), is_kept=False)
        return Allowance(
            granted=bool(granted),
            quota=quota,
            window_seconds=math.ceil(quota / per_second),
            left=left,
            wait_seconds=max(1, wait),
        )

    def queue(self) -> QueueStats:
        """Return statistics of the queue, at a cost that does not depend on the number of jobs."""
        queued, oldest, running, live, *flat = self._redis.script("stats/overview", self._redis.lease_milliseconds)
        counts = {name: int(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
        return QueueStats(queued, max(0.0, oldest / 1000), running, live, counts)

    def running_jobs(self) -> list[Job]:
        """Return the running jobs, the oldest first."""
        ids = self._redis.command("ZRANGE", keys.LEASES, 0, -1)
        found = [read_job(fields, None) for fields in self._redis.hashes(map(keys.job, ids)) if is_readable(fields)]
        return sorted(found, key=lambda job: job.started_at or job.created_at)


def _usage(owner: str, found: OwnerStats, seconds: dict[str, float]) -> Usage:
    counts = dict(zip(found.counts[::2], found.counts[1::2], strict=True))
    tensors, results = int(counts.get("tensor_bytes", 0)), int(counts.get("result_bytes", 0))
    ended = {state: int(counts.get(state, 0)) for state in ("succeeded", "failed", "cancelled")}
    return Usage(
        owner=owner,
        stored_bytes=tensors + results,
        reserved_bytes=int(counts.get("reserved_bytes", 0)),
        tensor_bytes=tensors,
        result_bytes=results,
        jobs=JobCounts(queued=found.queued, running=len(found.running), **ended),
        live_studies=found.live_studies,
        live_jobs=found.live_jobs,
        label_bytes=int(counts.get("label_bytes", 0)),
        live_runs=found.live_runs,
        computing_seconds=float(counts.get("seconds", 0)) + sum(seconds.get(id, 0.0) for id in found.running),
    )
