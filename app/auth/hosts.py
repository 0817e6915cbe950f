"""Host names and addresses: loopback, and those that a caller may use."""

import ipaddress
from collections.abc import Collection


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_known(header: str, further: Collection[str]) -> bool:
    """Whether a `Host` header has a name of this machine, or one that the operator has allowed.

    A page of another site can let its own name point to 127.0.0.1 and then call a server here as if it were its own
    (DNS rebinding); but the browser still sends that name.
    """
    name = _without_port(header.strip().lower())
    return is_loopback(name) or name in further


def listed(names: str | None) -> frozenset[str]:
    """The names in a comma-separated list."""
    return frozenset(name.strip().lower() for name in (names or "").split(",") if name.strip())


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
