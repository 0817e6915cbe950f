"""Find records that have expired, and deleted records that may have left files."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from sparse_ncp.worker.contract import TERMINAL
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection, translate_redis_errors

# Records read in one round trip: about a millisecond of Redis.
BATCH = 500


class Expired(NamedTuple):
    """A record that has expired."""

    owner: str
    id: str


class ExpiredRecords:
    """Search all records for expired ones."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def jobs_ended_before(self, moment: int) -> Iterator[Expired]:
        """Yield jobs that ended before a moment and that no live job needs, except for runs of studies."""
        fields = ("owner", "state", "finished_at", "study_id")
        for id, (owner, state, finished_at, study_id), dependents in self._scan(keys.job(""), *fields):
            if state in TERMINAL and int(finished_at) <= moment and not dependents and study_id is None:
                yield Expired(owner, id)

    def studies_ended_before(self, moment: int) -> Iterator[Expired]:
        """Yield studies that ended before a moment. The deletion checks whether a run is still needed."""
        for id, (owner, state, finished_at), _ in self._scan(keys.study(""), "owner", "state", "finished_at"):
            if state in TERMINAL and int(finished_at) <= moment:
                yield Expired(owner, id)

    def tensors_unused_since(self, moment: int) -> Iterator[Expired]:
        """Yield tensors that have not been used since a moment. The deletion checks that again, atomically."""
        for id, (owner, used_at), dependents in self._scan(keys.tensor(""), "owner", "used_at"):
            if used_at is not None and int(used_at) <= moment and not dependents:
                yield Expired(owner, id)

    def discarded(self) -> list[tuple[str, str]]:
        """Return kind (`job`, `study` or `content`) and id of recently deleted things."""
        names = self._redis.command("ZRANGE", keys.DISCARDED, 0, -1)
        return [(kind, id) for kind, _, id in (name.partition(":") for name in names)]

    def forget_discarded(self, before: int) -> None:
        """Forget what was deleted before a moment: its files are certainly gone."""
        self._redis.command("ZREMRANGEBYSCORE", keys.DISCARDED, "-inf", before)

    def acquire_cleanup_turn(self, worker: str, seconds: float) -> bool:
        """Return whether this worker should clean up now: one of all workers, once in that time."""
        taken = self._redis.command("SET", keys.CLEANUP_TURN, worker, "NX", "PX", max(1, int(seconds * 1000)))
        return taken is not None

    def milliseconds_ago(self, seconds: float) -> int:
        """Return a moment in the past in milliseconds, by the clock of Redis."""
        return self._redis.now() - int(seconds * 1000)

    def _scan(self, prefix: str, *names: str) -> Iterator[tuple[str, list[Any], int]]:
        """Yield id, fields and number of dependents of all records, in batches that do not block Redis."""
        with translate_redis_errors():
            found = self._redis.client.scan_iter(match=f"{prefix}*", count=BATCH)
            while batch := [str(key).removeprefix(prefix) for key in islice(found, BATCH)]:
                answers = self._redis.commands(
                    command
                    for id in batch
                    for command in (("HMGET", prefix + id, *names), ("SCARD", keys.dependents(id)))
                )
                for id, fields, dependents in zip(batch, answers[::2], answers[1::2], strict=True):
                    if fields[0] is not None:  # otherwise it was deleted meanwhile
                        yield id, fields, dependents
