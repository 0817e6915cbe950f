"""Reservations of disk space and quota for uploads that are running."""

import logging
import secrets
import time
from errno import ENOSPC

from sparse_ncp.worker.errors import StoreFull, Unavailable
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.records.uploads import EXPIRY_SECONDS
from sparse_ncp.worker.store.store import Store

# An upload of unknown length reserves in advance, and reports what it has written, in steps of a quarter of its size
# within these bounds.
MIN_STEP, MAX_STEP = 1 << 20, 64 << 20
RENEWAL_SECONDS = EXPIRY_SECONDS / 6
log = logging.getLogger("ncp.uploads")


class Reservation:
    """Space reserved for one upload, respected by all API processes. Adding the tensor's record ends it."""

    def __init__(self, records: Records, store: Store, owner: str, limits: Limits, spare_bytes: int) -> None:
        """Leave `spare_bytes` of the disk free."""
        self.id = secrets.token_hex(8)
        self._records = records.uploads
        self._store = store
        self._owner = owner
        self._limits = limits
        self._spare_bytes = spare_bytes
        self._granted = self._reported = 0
        self._reported_at = -RENEWAL_SECONDS

    def reserve(self, nbytes: int, written: int) -> None:
        """Extend the reservation to `nbytes` in total, of which `written` are on disk.

        Raises
        ------
        QuotaReached
            If the owner may not store that much.
        StoreFull
            If the disk has no room.
        """
        step = min(max(MIN_STEP, written // 4), MAX_STEP)
        is_recent = written - self._reported < step and time.monotonic() - self._reported_at < RENEWAL_SECONDS
        if nbytes <= self._granted and is_recent:
            return
        room = self._store.free_bytes() - self._spare_bytes
        ahead = self._granted if nbytes <= self._granted else nbytes + (step if written else 0)
        try:
            granted = self._records.reserve(self.id, self._owner, nbytes, ahead, written, room, self._limits)
        except Unavailable:
            if nbytes <= self._granted and self._granted:
                return  # granted before; adding the record will show whether Redis is back
            raise
        if granted is None:
            raise StoreFull(ENOSPC, "the disk has no room left for this")
        self._granted, self._reported, self._reported_at = granted, written, time.monotonic()

    def release(self) -> None:
        """Release the space. Without Redis, the reservation expires."""
        try:
            self._records.release(self.id)
        except Unavailable as error:
            log.warning("could not release the reservation of an upload, it will expire: %s", error)
