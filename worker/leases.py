"""Who is alive, and who has fallen silent. The launcher needs no more than this: it must start fast."""

from worker import keys
from worker.link import Link

# A worker that was silent for so many leases is not coming back.
FORGOTTEN_LEASES = 4


class Leases(Link):
    def reap(self, everything: bool = False, until: int | None = None) -> list[str]:
        """Jobs whose lease ran out are crashed; with `everything`, all running ones (no worker can be alive).

        `until` is what `tick` gave: if Redis stalls before it hears this call, leases that ran out meanwhile count not.
        """
        latest = "+inf" if everything else self._now() if until is None else until
        dead: list[str] = self._run("reap", latest)
        return dead

    def tick(self, worker: str) -> int:
        """This worker is alive; gives the time of Redis. Workers that died long ago are forgotten."""
        now = self._now()
        self._call("ZADD", keys.WORKERS, now, worker)
        self._call("ZREMRANGEBYSCORE", keys.WORKERS, "-inf", now - FORGOTTEN_LEASES * self._lease_milliseconds)
        return now

    def gone(self, worker: str) -> None:
        self._call("ZREM", keys.WORKERS, worker)

    def live_workers(self) -> int:
        """Those who were heard of within a lease."""
        return int(self._call("ZCOUNT", keys.WORKERS, self._now() - self._lease_milliseconds, "+inf"))

    def forget_workers(self) -> None:
        """All of them: a worker that lives says so again."""
        self._call("DEL", keys.WORKERS)

    def uptime_seconds(self) -> float:
        """How long Redis has been up."""
        return float(self._call("INFO", "server")["uptime_in_seconds"])

    def _now(self) -> int:
        seconds, microseconds = self._call("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000
