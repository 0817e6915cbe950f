"""Records that retention may remove: ended work, unused tensors, what was deleted and may have left files."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from sparse_ncp.worker.contract import TERMINAL
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection, translate_redis_errors

BATCH = 500


class Expired(NamedTuple):
    """A record that may go."""

    owner: str
    id: str


class ExpiredRecords:
    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def jobs_ended_before(self, moment: int) -> Iterator[Expired]:
        """Ended by then, and no live job starts from them. Not the runs of studies, which go together."""
        fields = ("owner", "state", "finished_at", "study_id")
        for id, (owner, state, finished_at, study_id), dependents in self._scan(keys.job(""), *fields):
            if state in TERMINAL and int(finished_at) <= moment and not dependents and study_id is None:
                yield Expired(owner, id)

    def studies_ended_before(self, moment: int) -> Iterator[Expired]:
        """A guess, as with tensors: the deletion asks whether a live job starts from one of their runs."""
        for id, (owner, state, finished_at), _ in self._scan(keys.study(""), "owner", "state", "finished_at"):
            if state in TERMINAL and int(finished_at) <= moment:
                yield Expired(owner, id)

    def tensors_unused_since(self, moment: int) -> Iterator[Expired]:
        """A guess, made without stopping anybody: the deletion asks again, in one step with it."""
        for id, (owner, used_at), dependents in self._scan(keys.tensor(""), "owner", "used_at"):
            if used_at is not None and int(used_at) <= moment and not dependents:
                yield Expired(owner, id)

    def discarded(self) -> list[tuple[str, str]]:
        """Kind (`job`, `study` or `content`) and id of what was deleted lately."""
        names = self._redis.command("ZRANGE", keys.DISCARDED, 0, -1)
        return [(kind, id) for kind, _, id in (name.partition(":") for name in names)]

    def forget_discarded(self, before: int) -> None:
        """Their files are gone for certain."""
        self._redis.command("ZREMRANGEBYSCORE", keys.DISCARDED, "-inf", before)

    def acquire_cleanup_turn(self, worker: str, seconds: float) -> bool:
        """Whether this worker is the one that cleans up now: one of all, once in that time."""
        taken = self._redis.command("SET", keys.CLEANUP_TURN, worker, "NX", "PX", max(1, int(seconds * 1000)))
        return taken is not None

    def milliseconds_ago(self, seconds: float) -> int:
        """A moment in the past, by the clock of Redis."""
        return self._redis.now() - int(seconds * 1000)

    def _scan(self, prefix: str, *names: str) -> Iterator[tuple[str, list[Any], int]]:
        """Id, fields and number of dependents of every record; a batch at a time, so that nobody waits for us."""
        with translate_redis_errors():
            found = self._redis.client.scan_iter(match=f"{prefix}*", count=BATCH)
            while batch := [str(key).removeprefix(prefix) for key in islice(found, BATCH)]:
                answers = self._redis.commands(
                    command
                    for id in batch
                    for command in (("HMGET", prefix + id, *names), ("SCARD", keys.dependents(id)))
                )
                for id, fields, dependents in zip(batch, answers[::2], answers[1::2], strict=True):
                    if fields[0] is not None:  # else it was deleted meanwhile
                        yield id, fields, dependents
