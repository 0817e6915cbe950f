"""A reservation: the bytes of the disk and of the owner's quota that an upload holds while it runs."""

import logging
import secrets
import time
from errno import ENOSPC

from sparse_ncp.worker.errors import StoreFull, Unavailable
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.records.uploads import EXPIRY_SECONDS
from sparse_ncp.worker.store.store import Store

# How much more than it needs now an upload of unknown length reserves, and after how much of it the others learn what
# was written: a quarter of the upload, within these bounds.
MIN_STEP, MAX_STEP = 1 << 20, 64 << 20
RENEWAL_SECONDS = EXPIRY_SECONDS / 6
log = logging.getLogger("ncp.uploads")


class Reservation:
    """Held by one upload, also against those that other API processes receive. `keep` of a tensor ends it."""

    def __init__(self, records: Records, store: Store, owner: str, limits: Limits, spare_bytes: int) -> None:
        """`spare_bytes` of the disk stay free."""
        self.id = secrets.token_hex(8)
        self._records = records.uploads
        self._store = store
        self._owner = owner
        self._limits = limits
        self._spare_bytes = spare_bytes
        self._granted = self._reported = 0
        self._reported_at = -RENEWAL_SECONDS

    def reserve(self, nbytes: int, written: int) -> None:
        """Hold `nbytes` in all, of which some are written. QuotaReached or StoreFull if there is no room for them."""
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
                return  # granted before: whether the record can be added decides
            raise
        if granted is None:
            raise StoreFull(ENOSPC, "the disk has no room left for this")
        self._granted, self._reported, self._reported_at = granted, written, time.monotonic()

    def release(self) -> None:
        """Give back what is held. Without Redis it ends by itself."""
        try:
            self._records.release(self.id)
        except Unavailable as error:
            log.warning("the reservation of an upload runs out by itself: %s", error)
