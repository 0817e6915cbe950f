"""The body of an upload, read into the reader's own buffers."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from starlette.requests import Request

# The extension of the ASGI scope that holds a body which can be read into the reader's buffers without a copy.
EXTENSION = "ncp.body"
NO_BYTES = memoryview(b"")


class Body(ABC):
    """The unread rest of a request body."""

    @abstractmethod
    async def read_into(self, buffer: memoryview, max_seconds: float) -> int:
        """Fill the buffer with the next bytes and return how many they are; 0 at the end of the body.

        They fill a part of it where the body ends, or comes so slowly that the rest takes longer than `max_seconds`.
        ClientDisconnect if the client is gone before the end.
        """


class GatheredBody(Body):
    """A body that arrives in pieces, which are copied."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = NO_BYTES  # of the last piece

    async def read_into(self, buffer: memoryview, max_seconds: float) -> int:
        filled, self._rest = move(self._rest, buffer)
        until = time.monotonic() + max_seconds
        while filled < len(buffer) and not (filled and time.monotonic() > until):
            piece = await anext(self._pieces, None)
            if piece is None:
                break
            moved, self._rest = move(memoryview(piece), buffer[filled:])
            filled += moved
        return filled


def move(piece: memoryview, buffer: memoryview) -> tuple[int, memoryview]:
    """Copy as much of a piece as fits in the buffer; return the number of bytes and the rest of the piece."""
    count = min(len(piece), len(buffer))
    buffer[:count] = piece[:count]
    return count, piece[count:] or NO_BYTES  # an empty part of it would keep all of it


def raw_body(request: Request) -> Body | None:
    """Return the body that the server can read into buffers itself, or None if it can only be streamed."""
    found: Body | None = request.scope.get("extensions", {}).get(EXTENSION, {}).get("body")
    return found
