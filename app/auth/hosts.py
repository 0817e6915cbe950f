"""Host names and addresses: loopback, and those that a caller may use."""

import ipaddress
from collections.abc import Collection


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_known(header: str, further: Collection[str]) -> bool:
    """Return whether a `Host` header has a name of this machine, or one that the operator allows.

    A page of another site can let its own name point to 127.0.0.1 and then call a server here as if it were its own
    (DNS rebinding); but the browser still sends that name.
    """
    host = header.strip().lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name) or name in further


def listed(names: str | None) -> frozenset[str]:
    """Return the names in a comma-separated list."""
    return frozenset(name.strip().lower() for name in (names or "").split(",") if name.strip())
