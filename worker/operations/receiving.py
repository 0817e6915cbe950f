"""Receive an upload: its bytes are counted, written and hashed in a thread while the next ones arrive."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Protocol

from ncp_client.formats import START_BYTES
from sparse_ncp.worker.operations.reservations import RENEWAL_SECONDS, Reservation
from sparse_ncp.worker.store.npy_validation import check_start
from sparse_ncp.worker.store.tensors import Upload

# Bytes per write: a change of thread per network packet would cost more than the write.
CHUNK = 1 << 21


class ByteSource(Protocol):
    """Bytes that arrive over time, such as the body of a request."""

    async def read_into(self, buffer: memoryview, max_seconds: float) -> int:
        """Fill the buffer and return the number of bytes, 0 at the end.

        The buffer is filled only in part at the end of the source, and where the rest would take longer than
        `max_seconds`.
        """


async def write_upload(source: ByteSource, upload: Upload, reservation: Reservation) -> None:
    """Write a source to storage, as far as the reservation can be extended.

    While a thread writes and hashes one buffer, the other is filled. An upload takes no more memory than these two.
    """

    def write(content: memoryview) -> None:
        if not upload.nbytes:
            check_start(bytes(content[:START_BYTES]))
        reservation.reserve(upload.nbytes + len(content), upload.nbytes)
        upload.write(content)

    # Views: to assign to a slice of a bytearray itself would copy the bytes twice.
    filling, spare = memoryview(bytearray(CHUNK)), memoryview(bytearray(CHUNK))
    async with _WriteQueue() as writes:
        while filled := await source.read_into(filling, RENEWAL_SECONDS):  # a slow one keeps its reservation, too
            await writes.next(partial(write, filling[:filled]))
            filling, spare = spare, filling


class _WriteQueue:
    """A queue of one write at a time, in a thread. On exit none is running, so that the file may be closed."""

    def __init__(self) -> None:
        # Its own thread, not anyio's: a write begins at once, and not after the event loop has received more.
        self._thread = ThreadPoolExecutor(1, "write")
        self._running: asyncio.Future[None] | None = None

    async def __aenter__(self) -> "_WriteQueue":
        return self

    async def next(self, write: Callable[[], None]) -> None:
        await self._finish_write()
        self._running = asyncio.get_running_loop().run_in_executor(self._thread, copy_context().run, write)

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._finish_write()
        finally:  # waits only for a request that is cancelled once more, and then for one write
            self._thread.shutdown()

    async def _finish_write(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running])  # awaited itself, it would be cancelled along with the request
            running, self._running = self._running, None
            running.result()
