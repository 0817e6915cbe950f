"""Records of running uploads, and the bytes that each has reserved."""

from sparse_ncp.worker.errors import QuotaReached
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection

# A reservation that is not renewed for this long expires: its API process has died. A live one renews it six times.
EXPIRY_SECONDS = 180.0


class UploadRecords:
    """Reserve disk space and quota for uploads."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def reserve(
        self, upload: str, owner: str, wanted: int, ahead: int, written: int, room: int, limits: Limits
    ) -> int | None:
        """Reserve `ahead` bytes in total for an upload, or `wanted` if those do not fit.

        Returns the number of reserved bytes, or None if they do not fit into the `room` on the disk besides other
        reservations. Raises QuotaReached if they exceed the quota. `written` bytes of the upload are on the disk.
        """
        limit = limits.stored_bytes
        outcome, *found = self._redis.script(
            "tensors/reserve",
            upload,
            owner,
            wanted,
            ahead,
            written,
            "" if limit is None else limit,
            room,
            int(1000 * EXPIRY_SECONDS),
            is_kept=False,
        )
        if outcome == "quota" and limit is not None:
            raise QuotaReached(limit, found[0], wanted)
        return found[0] if outcome == "granted" else None

    def release(self, upload: str) -> None:
        """Release the reservation of an upload."""
        self._redis.command("HDEL", keys.UPLOADS, upload)
