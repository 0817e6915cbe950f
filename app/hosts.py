"""Addresses and names: which of them only this machine can reach, which a caller may use."""

import ipaddress
from collections.abc import Collection


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_known(header: str, further: Collection[str]) -> bool:
    """Whether a `Host` header names this machine, or a name the operator has allowed.

    A page of the internet can let its own name point to 127.0.0.1 and then speak to a server here as if it were its
    own (DNS rebinding); but the browser still sends that name.
    """
    name = _without_port(header.strip().lower())
    return is_loopback(name) or name in further


def listed(names: str | None) -> frozenset[str]:
    """A comma-separated list of names."""
    return frozenset(name.strip().lower() for name in (names or "").split(",") if name.strip())


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
