"""Shares of owners in the computing time, and their weights and pauses, which the operator sets."""

from datetime import UTC, datetime

from sparse_ncp.worker.owner_limits import OwnerPause, OwnerShare
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection


class OwnerRecords:
    """Read the shares of all owners, and set weights and pauses."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def shares(self) -> list[OwnerShare]:
        """Return every owner with a record, in the order in which they are served next."""
        found = self._redis.script("owners/shares")
        total = sum(float(recent) for _, _, _, _, recent, _, _ in found)
        shares = [
            OwnerShare(
                owner=owner,
                weight=float(weight),
                running=running,
                queued=queued,
                recent_seconds=float(recent),
                share=float(recent) / total if total else 0.0,
                account_seconds=float(account),
                paused=OwnerPause.model_validate_json(held) if held else None,
            )
            for owner, weight, running, queued, recent, account, held in found
        ]
        return sorted(shares, key=lambda share: (share.paused is not None, share.account_seconds, share.owner))

    def set_weight(self, owner: str, weight: float) -> None:
        """Give an owner a share of the computing time that is `weight` times that of an owner with weight 1."""
        self._redis.script("owners/weigh", owner, repr(weight))

    def pause(self, owner: str, note: str = "") -> None:
        """Pause an owner: start no more of its jobs, and return running ones to the queue after their sweep."""
        self._redis.script("owners/pause", owner, OwnerPause(since=datetime.now(UTC), note=note).model_dump_json())

    def resume(self, owner: str) -> None:
        """End the pause of an owner, if there is one."""
        self._redis.script("owners/pause", owner, "")

    def paused(self, owner: str) -> OwnerPause | None:
        """Return the pause of an owner, or None."""
        held = self._redis.command("HGET", keys.share(owner), "held")
        return None if held is None else OwnerPause.model_validate_json(held)
