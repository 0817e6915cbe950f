"""Which workers are alive, and whose leases have run out. Loads no solver: the launcher must start fast."""

from datetime import UTC, datetime

from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection

# A worker that was silent for so many leases is not coming back.
FORGOTTEN_LEASES = 4
# A lease that runs for longer was given by another clock; some workers may be set to longer ones than this one.
LONGEST_LEASES = 4


class WorkerRecords:
    """The workers that have sent a heartbeat."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def live(self) -> dict[str, datetime]:
        """Each that has sent a heartbeat within the time of a lease, and when it did last."""
        since = self._redis.now() - self._redis.lease_milliseconds
        found = self._redis.command("ZRANGE", keys.WORKERS, since, "+inf", "BYSCORE", "WITHSCORES")
        return {name: datetime.fromtimestamp(float(score) / 1000, UTC) for name, score in found}

    def live_count(self) -> int:
        """How many have sent a heartbeat within the time of a lease. One of the future is from before a step back."""
        now, lease = self._redis.now(), self._redis.lease_milliseconds
        return int(self._redis.command("ZCOUNT", keys.WORKERS, now - lease, now + lease))


class Leases:
    """Heartbeats of workers, and the leases of their jobs. Not for the API, which only counts workers."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def heartbeat(self, worker: str) -> int:
        """Record that this worker is alive; gives the time of Redis. Workers that died long ago are forgotten.

        So are those of the future, whose time is from before the clock was set back: the living are soon here again.
        """
        now, lease = self._redis.now(), self._redis.lease_milliseconds
        self._redis.command("ZADD", keys.WORKERS, now, worker)
        self._redis.command("ZREMRANGEBYSCORE", keys.WORKERS, "-inf", now - FORGOTTEN_LEASES * lease)
        self._redis.command("ZREMRANGEBYSCORE", keys.WORKERS, now + lease, "+inf")
        return now

    def remove(self, worker: str) -> None:
        """Forget a worker that has ended."""
        self._redis.command("ZREM", keys.WORKERS, worker)

    def clear(self) -> None:
        """Forget all workers: one that lives sends a heartbeat again."""
        self._redis.command("DEL", keys.WORKERS)

    def reap(self, everything: bool = False, until: int | None = None) -> list[str]:
        """Take back the jobs whose lease has run out; with `everything`, all that run (no worker can be alive).

        `until` is what `heartbeat` gave: leases that run out while Redis stalls before this call do not count.
        """
        latest = "+inf" if everything else self._redis.now() if until is None else until
        reaped: list[str] = self._redis.script("claims/reap", latest, LONGEST_LEASES * self._redis.lease_milliseconds)
        return reaped

    def redis_run_id(self) -> str:
        """Another one whenever Redis was started again. Its uptime follows the clock on the wall, steps and all."""
        return str(self._redis.command("INFO", "server")["run_id"])
