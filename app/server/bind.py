"""The address and port that the API listens on."""

import socket
from typing import Any

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.app.auth.hosts import is_loopback
from sparse_ncp.app.server.errors import StartupError
from sparse_ncp.worker.config import Configuration

# Connections that wait while the API restarts. The kernel lowers it to its own limit, net.core.somaxconn.
BACKLOG = 2048


def check_address(configuration: Configuration) -> None:
    """Refuse an address that this machine does not have, or that others can reach before the first key is created."""
    resolve_address(configuration.host, configuration.port)
    if not is_loopback(configuration.host) and not ApiKeys(configuration.data).all():
        raise StartupError(
            f"{configuration.host} can be reached from other machines, but no key has been created; "
            f"create one with ncp keys create NAME --data {configuration.data}, or listen on 127.0.0.1"
        )


def resolve_address(host: str, port: int) -> tuple[Any, ...]:
    """Return the first address of a host, as `socket.getaddrinfo` does."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a name"
        raise StartupError(
            f"{host!r} is not an address of this machine ({reason}); "
            "give an IP address or a host name with --host or NCP_HOST, such as 127.0.0.1"
        ) from error


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket, which the launcher keeps while the API restarts."""
    family, kind, protocol, _, address = resolve_address(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"port {port} on {host} cannot be used ({error.strerror}); choose another with --port or NCP_PORT"
        ) from error
    return listener
