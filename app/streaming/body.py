"""The body of an upload, read into the reader's own buffers."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from starlette.requests import Request

# Of the ASGI scope: the body of a request whose server can put it into the reader's buffers without a copy.
EXTENSION = "ncp.body"


class Body(ABC):
    """What is left of a request's body."""

    @abstractmethod
    async def read_into(self, buffer: memoryview, max_seconds: float) -> int:
        """Fill the buffer with the next bytes and return how many they are; 0 at the end of the body.

        They fill a part of it where the body ends, or comes so slowly that the rest takes longer than `max_seconds`.
        ClientDisconnect if the client is gone before the end.
        """


class GatheredBody(Body):
    """A body that comes in pieces, which are copied."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")  # of the last piece

    async def read_into(self, buffer: memoryview, max_seconds: float) -> int:
        filled = self._move_rest(buffer)
        until = time.monotonic() + max_seconds
        while filled < len(buffer) and not (filled and time.monotonic() > until):
            piece = await anext(self._pieces, None)
            if piece is None:
                break
            self._rest = memoryview(piece)
            filled += self._move_rest(buffer[filled:])
        return filled

    def _move_rest(self, buffer: memoryview) -> int:
        moved = self._rest[: len(buffer)]
        buffer[: len(moved)] = moved
        self._rest = self._rest[len(moved) :]
        return len(moved)


def raw_body(request: Request) -> Body | None:
    """The body as the server puts it into buffers itself; None where it can only be streamed."""
    found: Body | None = request.scope.get("extensions", {}).get(EXTENSION, {}).get("body")
    return found
