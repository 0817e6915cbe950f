"""Records whose time may have come: ended jobs, unused tensors, and what was deleted but may have left files."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from worker import keys
from worker.contract import TERMINAL
from worker.leases import Leases
from worker.link import away_is_unavailable

BATCH = 500


class Old(NamedTuple):
    """A record that may go."""

    owner: str
    id: str


class OldRecords(Leases):
    def jobs_ended_before(self, moment: int) -> Iterator[Old]:
        """Ended by then, and no live job starts from them."""
        for id, (owner, state, finished_at), users in self._scanned(keys.job(""), "owner", "state", "finished_at"):
            if state in TERMINAL and int(finished_at) <= moment and not users:
                yield Old(owner, id)

    def tensors_unused_since(self, moment: int) -> Iterator[Old]:
        """A guess, made without stopping anybody: `delete_tensor` asks again, in one step with the deletion."""
        for id, (owner, used_at), users in self._scanned(keys.tensor(""), "owner", "used_at"):
            if used_at is not None and int(used_at) <= moment and not users:
                yield Old(owner, id)

    def discarded(self) -> list[tuple[str, str]]:
        """Kind (`job` or `content`) and id of what was deleted lately."""
        return [
            (kind, id) for kind, _, id in (name.partition(":") for name in self._call("ZRANGE", keys.DISCARDED, 0, -1))
        ]

    def forget_discarded(self, before: int) -> None:
        self._call("ZREMRANGEBYSCORE", keys.DISCARDED, "-inf", before)

    def take_turn_to_tidy(self, worker: str, seconds: float) -> bool:
        """One worker of all, once in that time."""
        return self._call("SET", keys.TIDIED, worker, "NX", "PX", max(1, int(seconds * 1000))) is not None

    def milliseconds_ago(self, seconds: float) -> int:
        """A moment by the clock of Redis, which all times in records are of."""
        return self._now() - int(seconds * 1000)

    def _scanned(self, prefix: str, *names: str) -> Iterator[tuple[str, list[Any], int]]:
        """Id, fields and number of live users of every record; a batch at a time, so that nobody waits for us."""
        with away_is_unavailable():
            found = self._redis.scan_iter(match=f"{prefix}*", count=BATCH)
            while batch := [str(key).removeprefix(prefix) for key in islice(found, BATCH)]:
                pipe = self._redis.pipeline(transaction=False)
                for id in batch:
                    pipe.hmget(prefix + id, *names)
                    pipe.scard(keys.users(id))
                answers = pipe.execute()
                for id, fields, users in zip(batch, answers[::2], answers[1::2], strict=True):
                    if fields[0] is not None:  # else it was deleted meanwhile
                        yield id, fields, users
