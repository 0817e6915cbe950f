"""Limits for connections: of one address and in all, with a share that only callers with a key can take."""

import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, Protocol

from sparse_ncp.worker.config import Configuration

# Files that the API opens besides: of the store, to Redis, for its logs.
OTHER_FILES = 256
LARGEST_FILE_LIMIT = 1 << 16
# Of all connections; the others are for those on which a key was sent.
SHARE_WITHOUT_KEY = 0.75
LOG_SECONDS = 10.0
Bound = Literal["address", "all"]
log = logging.getLogger("ncp.connection")


def raise_file_limit() -> int:
    """Let this process open as many files as it may, within reason; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LARGEST_FILE_LIMIT if hard == resource.RLIM_INFINITY else min(hard, LARGEST_FILE_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return LARGEST_FILE_LIMIT if soft == resource.RLIM_INFINITY else soft


class Limited(Protocol):
    """A connection, as the limits see it."""

    @property
    def address(self) -> str | None: ...

    def has_caller(self) -> bool:
        """Whether somebody was identified on it: by a key, or by any request to a server without keys."""

    def is_idle(self) -> bool:
        """Whether no request on it is being answered."""

    def close_idle(self) -> None: ...


class ConnectionLimits:
    """Counts connections. Where there are too many, the oldest idle one without a caller makes room for the new one:
    whoever has a key sends it at once, and is then not closed for others."""

    def __init__(
        self, in_all: int, per_address: int, is_proxy: Callable[[str | None], bool], count: Callable[[Bound], None]
    ) -> None:
        """A proxy speaks for many callers: its own address is not limited."""
        self._in_all = in_all
        self._without_key = max(1, int(SHARE_WITHOUT_KEY * in_all))
        self._per_address = per_address
        self._is_proxy = is_proxy
        self._count = count
        self._open: set[Limited] = set()
        self._unauthenticated: dict[Limited, None] = {}  # without a caller so far, the oldest first
        self._addresses: Counter[str | None] = Counter()
        self._logged_at = -LOG_SECONDS
        self._closed = 0

    @classmethod
    def from_configuration(
        cls,
        configuration: Configuration,
        files: int,
        is_proxy: Callable[[str | None], bool],
        count: Callable[[Bound], None],
    ) -> "ConnectionLimits":
        in_all = max(8, min(configuration.max_connections, files - OTHER_FILES))
        return cls(in_all, configuration.max_connections_per_address, is_proxy, count)

    def add(self, connection: Limited) -> bool:
        """Whether the connection may stay; another may have been closed for it."""
        bound = self._bound_reached(connection.address)
        if bound is not None and not self._make_room(connection.address if bound == "address" else None, bound):
            return False
        self._open.add(connection)
        self._unauthenticated[connection] = None
        self._addresses[connection.address] += 1
        return True

    def remove(self, connection: Limited) -> None:
        self._open.discard(connection)
        self.mark_authenticated(connection)

    def mark_authenticated(self, connection: Limited) -> None:
        """It has a caller, and does not count for its address any more."""
        if connection in self._unauthenticated:
            del self._unauthenticated[connection]
            self._addresses[connection.address] -= 1
            if not self._addresses[connection.address]:
                del self._addresses[connection.address]

    def _bound_reached(self, address: str | None) -> Bound | None:
        if self._addresses[address] >= self._per_address and not self._is_proxy(address):
            return "address"
        if len(self._open) >= self._in_all or len(self._unauthenticated) >= self._without_key:
            return "all"
        return None

    def _make_room(self, address: str | None, bound: Bound) -> bool:
        """Close the oldest idle connection without a caller, of one address if it is given; whether there was one."""
        for connection in list(self._unauthenticated):
            if connection.has_caller():
                self.mark_authenticated(connection)
        if self._bound_reached(address) is None:
            return True
        candidates = (one for one in self._unauthenticated if address is None or one.address == address)
        evicted = next((one for one in candidates if one.is_idle()), None)
        self._count(bound)
        self._log(bound, address)
        if evicted is None:
            return False
        self.remove(evicted)
        evicted.close_idle()
        return True

    def _log(self, bound: Bound, address: str | None) -> None:
        """Not for each: whoever opens thousands must not fill the log."""
        self._closed += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            where = f"from {address}" if bound == "address" else f"in all, of {self._in_all}"
            log.warning("%d connections closed or refused: too many without a key %s", self._closed, where)
            self._logged_at, self._closed = now, 0
