"""A large request body, received directly into the reader's buffers without a copy in Python."""

import asyncio
from collections.abc import Callable

import httptools
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sparse_ncp.app.streaming.body import NO_BYTES, Body, move

# Bytes received at once of a body that is discarded.
DISCARD_BYTES = 64 << 10


class BufferedBody(Body, asyncio.BufferedProtocol):
    """The protocol of a connection from the second piece of a body to its last byte; uvicorn's returns after that.

    No byte beyond the body is received, so the next request waits in the kernel. The transport is paused between two
    calls of `read_into`, which is the back-pressure. The rest of the body of a refused request is received and
    discarded, as far as the connection allows: some clients read the refusal only after they have sent everything.
    """

    def __init__(
        self,
        connection: HttpToolsProtocol,
        length: int,
        count: Callable[[int], None],
        discard: Callable[[int], None],
    ) -> None:
        """Take over the body of the request whose headers were just parsed.

        `count` is called with the number of bytes received, and `discard` with that of bytes after a refusal.
        """
        self._connection = connection
        self._cycle = connection.cycle
        self._left = length
        self._count = count
        self._discard = discard
        self._parsed: memoryview | None = None  # the rest of the first piece, which uvicorn received
        self._unfilled = NO_BYTES
        self._filled = 0
        self._deadline = 0.0

    async def read_into(self, buffer: memoryview, max_seconds: float) -> int:
        if self._parsed is None:
            self._parsed = await self._receive_first()
        cycle, flow = self._cycle, self._connection.flow
        self._filled, self._parsed = move(self._parsed, buffer)
        self._unfilled = buffer[self._filled :]
        self._deadline = self._connection.loop.time() + max_seconds
        try:
            while self._left and self._unfilled and not cycle.disconnected:
                flow.resume_reading()
                await cycle.message_event.wait()
                cycle.message_event.clear()
        finally:
            self._unfilled = NO_BYTES
            if self._left:  # else the connection reads on
                flow.pause_reading()
        if self._left and cycle.disconnected:
            raise ClientDisconnect
        return self._filled

    async def _receive_first(self) -> memoryview:
        """Receive the first piece through uvicorn, which also answers `Expect: 100-continue`; then take over."""
        message = await self._cycle.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        piece = memoryview(message["body"])
        self._left -= len(piece)
        if self._left:
            self._connection.flow.pause_reading()
            self._connection.transport.set_protocol(self)
        return piece

    # Called by the transport

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._unfilled:
            return self._unfilled[: self._left]
        if self._cycle.response_complete:
            return memoryview(bytearray(min(self._left, DISCARD_BYTES)))
        raise RuntimeError("received a body that no route reads")  # closes the connection

    def buffer_updated(self, nbytes: int) -> None:
        self._count(nbytes)
        if self._cycle.response_complete:
            self._discard(nbytes)
        self._left -= nbytes
        self._filled += nbytes
        self._unfilled = self._unfilled[nbytes:]
        if not self._left:  # return the connection to uvicorn, with a new parser: the old one still waits for the body
            connection = self._connection
            connection.parser = httptools.HttpRequestParser(connection)
            connection.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
            connection.transport.set_protocol(connection)
            connection.on_message_complete()
        elif not self._cycle.response_complete and (
            not self._unfilled or self._connection.loop.time() > self._deadline
        ):
            self._unfilled = NO_BYTES
            self._connection.flow.pause_reading()
            self._cycle.message_event.set()

    def eof_received(self) -> None:
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
