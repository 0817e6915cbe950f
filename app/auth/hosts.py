"""Host names and addresses: loopback, and those that a caller may use."""

import ipaddress
import re
from collections.abc import Collection

# A `Host` header (RFC 9110, 7.2): a name or an IPv4 address, or an IPv6 address in brackets; then perhaps a port.
HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{1,5})?")


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
    found = HOST.fullmatch(header.strip().lower())
    if found is None:
        return False
    if found["address"] is not None:
        return is_loopback(found["address"]) or found["address"] in further
    return is_loopback(found["name"]) or found["name"] in further


def network_of(address: str) -> str:
    """Return what one machine may have of addresses: its IPv4 address, or the /64 network of its IPv6 address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # a proxy may name its callers as it likes
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), 64), strict=False))


def listed(names: str | None) -> frozenset[str]:
    """Return the names in a comma-separated list."""
    return frozenset(name.strip().lower() for name in (names or "").split(",") if name.strip())
