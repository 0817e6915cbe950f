"""Messages between the API and a renderer: pickled values with their length, and an open file beside an answer."""

import os
import pickle
import socket
import struct
import sys
import tempfile
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple

from sparse_ncp.worker.store.blobs import OpenFile

LENGTH = struct.Struct("!I")
# An answer itself is a file. This bounds what is received of a message, such as a list of problems.
LARGEST_MESSAGE = 1 << 22


class Task(NamedTuple):
    """A request for a renderer, with the name under which its answer is kept; None if it is not kept."""

    asked: Any
    digest: str | None
    request_id: str | None


class Done(NamedTuple):
    """An answer, whose file is sent beside it."""

    sha256: str
    nbytes: int
    iteration: int | None


class Failed(NamedTuple):
    """An exception in parts: exceptions of this package cannot be pickled, as their arguments are not stored."""

    kind: type[Exception]
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        return cls(type(error), error.args, error.__dict__)

    def exception(self) -> Exception:
        """Return the exception as it was raised."""
        error: Exception = self.kind.__new__(self.kind, *self.arguments)
        error.__dict__.update(self.attributes)
        return error


def encode(message: object) -> bytes:
    """Return a message as bytes, its length first."""
    content = pickle.dumps(message)
    return LENGTH.pack(len(content)) + content


def decode(received: bytes) -> Any | None:
    """Return the message; None if a part is missing. Both processes are trusted, so it may be unpickled."""
    if len(received) < LENGTH.size or len(received) < LENGTH.size + LENGTH.unpack_from(received)[0]:
        return None
    return pickle.loads(received[LENGTH.size :])


def receive(connection: socket.socket) -> Any | None:
    """Wait for a message; None if the other side has closed the connection."""
    received = b""
    while (message := decode(received)) is None:
        part = connection.recv(1 << 16)
        if not part:
            return None
        received += part
    return message


def unnamed_file(content: bytes) -> OpenFile:
    """Return the content as a file in memory, where there is such a thing, which needs no room on the disk."""
    file: BinaryIO
    if sys.platform == "linux":
        file = os.fdopen(os.memfd_create("ncp-answer", os.MFD_CLOEXEC), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - its reader closes it
    file.write(content)
    file.flush()
    return OpenFile(file, sha256(content).hexdigest(), len(content))
