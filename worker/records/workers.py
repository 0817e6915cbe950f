"""Live workers and leases of jobs. Imports no solver, since the launcher must start fast."""

from datetime import UTC, datetime

from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection

# A worker without a heartbeat for this many leases is forgotten. It has long lost its jobs, after one.
FORGOTTEN_LEASES = 4
# A lease that ends later than this was given before a backward step of the clock. Other workers may have longer leases.
LONGEST_LEASES = 4


class WorkerRecords:
    """Workers that have sent a heartbeat."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def live(self) -> dict[str, datetime]:
        """Return the live workers and the times of their last heartbeats."""
        since = self._redis.now() - self._redis.lease_milliseconds
        found = self._redis.command("ZRANGE", keys.WORKERS, since, "+inf", "BYSCORE", "WITHSCORES")
        return {name: datetime.fromtimestamp(float(score) / 1000, UTC) for name, score in found}

    def live_count(self) -> int:
        """Return the number of live workers, without heartbeats from before a backward step of the clock."""
        now, lease = self._redis.now(), self._redis.lease_milliseconds
        return int(self._redis.command("ZCOUNT", keys.WORKERS, now - lease, now + lease))


class Leases:
    """Heartbeats of workers and leases of their jobs. The API does not use this class."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def heartbeat(self, worker: str, slots: int = 1) -> int:
        """Record that this worker is alive and runs up to `slots` jobs at once; return the time of Redis.

        Workers that died long ago are forgotten, as are heartbeats from before a backward step of the clock.
        """
        now, lease = self._redis.now(), self._redis.lease_milliseconds
        self._redis.command("ZADD", keys.WORKERS, now, worker)
        self._redis.command("HSET", keys.SLOTS, worker, slots)
        for start, end in (("-inf", now - FORGOTTEN_LEASES * lease), (now + lease, "+inf")):
            forgotten = self._redis.command("ZRANGE", keys.WORKERS, start, end, "BYSCORE")
            if forgotten:
                self._redis.command("ZREM", keys.WORKERS, *forgotten)
                self._redis.command("HDEL", keys.SLOTS, *forgotten)
        return now

    def remove(self, worker: str) -> None:
        """Forget a worker that has stopped."""
        self._redis.command("ZREM", keys.WORKERS, worker)
        self._redis.command("HDEL", keys.SLOTS, worker)

    def clear(self) -> None:
        """Forget all workers. Live ones will send another heartbeat."""
        self._redis.command("DEL", keys.WORKERS, keys.SLOTS)

    def reap(self, everything: bool = False, until: int | None = None) -> list[str]:
        """Return jobs whose lease has expired to the queue, and return their ids.

        Parameters
        ----------
        everything : bool
            Take back all running jobs; only if no worker can be alive.
        until : int, optional
            Time returned by `heartbeat`, so that leases which expire while Redis stalls do not count.
        """
        latest = "+inf" if everything else self._redis.now() if until is None else until
        reaped: list[str] = self._redis.script("claims/reap", latest, LONGEST_LEASES * self._redis.lease_milliseconds)
        return reaped

    def redis_run_id(self) -> str:
        """Return the run id of Redis, which changes with every start. Its uptime would follow steps of the clock."""
        return str(self._redis.command("INFO", "server")["run_id"])
