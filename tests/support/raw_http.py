"""Bytes on a socket: for clients that no HTTP library would be."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.support.api import Api


@contextmanager
def connected(running: Api, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    address = urlsplit(running.address)
    with socket.socket() as made:
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.settimeout(20)
        made.connect((address.hostname, address.port))
        yield made


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    chunks = []
    try:
        while chunk := connection.recv(1 << 16):
            chunks.append(chunk)
    except ConnectionResetError:
        pass  # closed at once, which is what an unread client gets
    return b"".join(chunks)


def exchanged(running: Api, request: bytes) -> bytes:
    with connected(running) as connection:
        connection.sendall(request)
        return until_closed(connection)
