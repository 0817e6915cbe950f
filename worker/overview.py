"""The whole server at a glance, for those who look after it: every owner's jobs, and what has been counted."""

from collections.abc import Mapping
from dataclasses import dataclass

from worker import keys
from worker.contract import Job
from worker.job_fields import job_from
from worker.link import Link, away_is_unavailable


@dataclass(frozen=True)
class Glance:
    """One look at Redis."""

    queued: int
    oldest_queued_seconds: float
    running: int
    live_workers: int
    counts: Mapping[str, int]


class Overview(Link):
    def glance(self) -> Glance:
        """One script of a few short commands, however many jobs there are."""
        queued, oldest, running, live, *flat = self._run("overview", self._lease_milliseconds)
        counts = {name: int(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
        return Glance(queued, max(0.0, oldest / 1000), running, live, counts)

    def running(self) -> list[Job]:
        """The jobs that are running now, the one that began first at the top."""
        ids = self._call("ZRANGE", keys.LEASES, 0, -1)
        with away_is_unavailable():
            pipe = self._redis.pipeline(transaction=False)
            for id in ids:
                pipe.hgetall(keys.job(id))
            found = [job_from(fields, None) for fields in pipe.execute() if fields]
        return sorted(found, key=lambda job: job.started_at or job.created_at)
