"""What a server must have for itself: its port and its data folder."""

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Any, BinaryIO

from worker.files import private_folder

# Connections that wait while the API is started again.
BACKLOG = 2048
PATIENCE_SECONDS = 2.0


class Taken(RuntimeError):
    """Somebody else has it, or it cannot be had."""


def look_up(host: str, port: int) -> tuple[Any, ...]:
    """The first address of that name."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a name"
        told = f"{host!r} is no address of this machine ({reason}); give an IP address or a host name"
        raise Taken(f"{told} with --host or NCP_HOST, such as 127.0.0.1") from error


def take_port(host: str, port: int) -> socket.socket:
    """A listening socket, bound before anything starts and kept while the API is started again."""
    family, kind, protocol, _, address = look_up(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise Taken(
            f"port {port} on {host} cannot be used ({error.strerror}); choose another with --port or NCP_PORT"
        ) from error
    return listener


def take_folder(path: Path, patience_seconds: float = PATIENCE_SECONDS) -> BinaryIO:
    """The data folder, ours alone while the file is open, here or in a child: two servers would spoil its files.

    A server that was just killed has it for another moment, until its last child is gone.
    """
    try:
        descriptor = os.open(private_folder(path) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Taken(
            f"the data folder {path} cannot be used ({error.strerror}); choose another with --data or NCP_DATA"
        ) from error
    lock = os.fdopen(descriptor, "rb")
    deadline = time.monotonic() + patience_seconds
    while not _locked(lock):
        if time.monotonic() > deadline:
            lock.close()
            raise Taken(
                f"another server uses the data folder {path}; stop it, or choose another with --data or NCP_DATA"
            )
        time.sleep(0.05)
    return lock


def _locked(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
