"""Limits on the number of connections, per address and in all, with a share reserved for callers with a key."""

import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, Protocol

from sparse_ncp.worker.config import Configuration

# Files reserved for everything but connections: the store, Redis, logs.
OTHER_FILES = 256
# Every connection costs memory, whatever the system allows.
LARGEST_FILE_LIMIT = 1 << 16
# The rest of the connections is reserved for authenticated ones.
SHARE_WITHOUT_KEY = 0.75
# One line for all connections refused in this time: an attack must not fill the log.
LOG_SECONDS = 10.0
Bound = Literal["address", "all"]
log = logging.getLogger("ncp.connection")


def raise_file_limit() -> int:
    """Raise this process's limit of open files, and return it."""
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
        """Return whether a request on it was authenticated, or the server is open."""

    def is_idle(self) -> bool:
        """Return whether no request on it is being answered."""

    def close_idle(self) -> None: ...


class ConnectionLimits:
    """Count connections, and close the oldest idle one that is unauthenticated to make room for a new one.

    Callers with a key send it with their first request, so their connections are not closed for others.
    """

    def __init__(
        self, in_all: int, per_address: int, is_proxy: Callable[[str | None], bool], count: Callable[[Bound], None]
    ) -> None:
        """Set the limits. The address of a proxy, which speaks for many callers, is not limited."""
        self._in_all = in_all
        self._without_key = max(1, int(SHARE_WITHOUT_KEY * in_all))
        self._per_address = per_address
        self._is_proxy = is_proxy
        self._count = count
        self._open: set[Limited] = set()
        self._unauthenticated: dict[Limited, None] = {}  # the oldest first
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
        """Add a connection, evicting another if necessary; return False if there is no room for it."""
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
        """Stop counting a connection towards the limit of its address."""
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
        """Close the oldest idle unauthenticated connection, of one address if given; return whether there is room."""
        for connection in list(self._unauthenticated):
            if connection.has_caller():
                self.mark_authenticated(connection)
        if self._bound_reached(address) is None:
            return True
        candidates = (one for one in self._unauthenticated if address is None or one.address == address)
        evicted = next((one for one in candidates if one.is_idle()), None)
        self._count(bound)
        self._closed += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:  # a client that opens thousands of connections must not fill the log
            where = f"from {address}" if bound == "address" else f"in all, of {self._in_all}"
            log.warning("%d connections closed or refused: too many without a key %s", self._closed, where)
            self._logged_at, self._closed = now, 0
        if evicted is None:
            return False
        self.remove(evicted)
        evicted.close_idle()
        return True
