"""Records of running uploads: the bytes that each has reserved, of its owner's quota and of the disk."""

from sparse_ncp.worker.errors import QuotaReached
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection

# How long a reservation holds without being renewed: its upload has died with its API.
EXPIRY_SECONDS = 180.0


class UploadRecords:
    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def reserve(
        self, upload: str, owner: str, wanted: int, ahead: int, written: int, room: int, limits: Limits
    ) -> int | None:
        """Reserve `ahead` bytes in all for an upload, or `wanted` if those do not fit; gives how many.

        `room` is what the disk has left, with what was `written` of the upload. QuotaReached if the owner may not
        store so much, None if it does not fit on the disk beside what other uploads have reserved.
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
        )
        if outcome == "quota" and limit is not None:
            raise QuotaReached(limit, found[0], wanted)
        return found[0] if outcome == "granted" else None

    def release(self, upload: str) -> None:
        self._redis.command("HDEL", keys.UPLOADS, upload)
