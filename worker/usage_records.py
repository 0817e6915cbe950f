"""What owners have taken of the server: bytes, jobs, computing time, requests."""

import json
import math
from collections.abc import Sequence
from typing import Any

from worker import keys
from worker.errors import NotFound, QuotaReached
from worker.limits import Allowance, JobCounts, Limits, Usage
from worker.link import Link, away_is_unavailable

# So many seconds' worth of requests may come at once.
WINDOW_SECONDS = 10


class UsageRecords(Link):
    def usage(self, owner: str) -> Usage:
        return self.usages([owner])[0]

    def usages(self, owners: Sequence[str]) -> list[Usage]:
        """Of each, in two round trips."""
        with away_is_unavailable():
            pipe = self._redis.pipeline(transaction=False)
            for owner in owners:
                pipe.hgetall(keys.usage(owner))
                pipe.zcard(keys.queue(owner))
                pipe.smembers(keys.running(owner))
            found: list[Any] = pipe.execute()
        seconds = self._running_seconds([id for running in found[2::3] for id in running])
        return [_usage(*parts, seconds) for parts in zip(owners, found[::3], found[1::3], found[2::3], strict=True)]

    def owners(self) -> set[str]:
        """Everybody who has ever kept a tensor here."""
        return set(self._call("SMEMBERS", keys.OWNERS))

    def owner_of_job(self, id: str) -> str:
        owner: str | None = self._call("HGET", keys.job(id), "owner")
        if owner is None:
            raise NotFound("job", id)
        return owner

    def check_quota(self, owner: str, nbytes: int, limits: Limits) -> None:
        """Whether so many bytes could be kept now. `add_tensor` has the last word, when they have arrived."""
        if limits.stored_bytes is None:
            return
        stored = self.usage(owner).stored_bytes
        if stored + nbytes > limits.stored_bytes:
            raise QuotaReached(limits.stored_bytes, stored, nbytes)

    def take_request(self, owner: str, per_second: float) -> Allowance:
        """Count one request; refused ones do not count."""
        quota = max(1, math.floor(per_second * WINDOW_SECONDS))
        granted, left, wait = self._run("take_request", owner, quota, repr(per_second))
        return Allowance(
            granted=bool(granted),
            quota=quota,
            window_seconds=math.ceil(quota / per_second),
            left=left,
            wait_seconds=max(1, wait),
        )

    def _running_seconds(self, ids: Sequence[str]) -> dict[str, float]:
        """Computing time so far of jobs that have not ended."""
        with away_is_unavailable():
            pipe = self._redis.pipeline(transaction=False)
            for id in ids:
                pipe.hmget(keys.job(id), "progress", "spent")
            return {id: _seconds(*found) for id, found in zip(ids, pipe.execute(), strict=True)}


def _seconds(progress: str | None, spent: str | None) -> float:
    return max(json.loads(progress)["seconds"] if progress else 0.0, float(spent or 0))


def _usage(owner: str, counts: dict[str, str], queued: int, running: set[str], seconds: dict[str, float]) -> Usage:
    tensors, results = int(counts.get("tensor_bytes", 0)), int(counts.get("result_bytes", 0))
    ended = {state: int(counts.get(state, 0)) for state in ("succeeded", "failed", "cancelled")}
    return Usage(
        owner=owner,
        stored_bytes=tensors + results,
        tensor_bytes=tensors,
        result_bytes=results,
        jobs=JobCounts(queued=queued, running=len(running), **ended),
        computing_seconds=float(counts.get("seconds", 0)) + sum(seconds.get(id, 0.0) for id in running),
    )
