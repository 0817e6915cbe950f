"""Receive an upload: stream the request body to the disk, counted, written and hashed in a thread."""

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial

from fastapi import Request

from sparse_ncp.app.errors.exceptions import TooLarge, UnsupportedMedia
from sparse_ncp.app.streaming.body import Body, GatheredBody, raw_body
from sparse_ncp.app.streaming.multipart import MAX_AROUND, FormFile
from sparse_ncp.worker.errors import BadTensor
from sparse_ncp.worker.operations.reservations import RENEWAL_SECONDS, Reservation
from sparse_ncp.worker.store.store import Upload

# Bytes per write: switching threads for each network packet would cost more than the write.
CHUNK = 1 << 21
DIGEST = re.compile(r"(?:^|,)\s*sha-256\s*=\s*:([^:]*):")


def tensor_stream(request: Request) -> AsyncIterator[bytes] | FormFile | Body:
    """Return the bytes of the tensor, from a raw body or a form."""
    content_type = request.headers.get("content-type", "")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("The body is compressed.", "send the .npy file as it is")
    if content_type.lower().startswith("multipart/form-data"):
        return FormFile(content_type, request.stream())
    if content_type.lower().startswith(("multipart/", "application/json")):
        raise UnsupportedMedia(
            f"A body of type {content_type} is not a tensor.", "send application/octet-stream or multipart/form-data"
        )
    return raw_body(request) or request.stream()


def declared_length(request: Request) -> int:
    """Return the least size of the tensor according to Content-Length, or 0 without that header."""
    declared = request.headers.get("content-length", "")
    allowance = MAX_AROUND if request.headers.get("content-type", "").lower().startswith("multipart/") else 0
    return max(0, int(declared) - allowance) if declared.isdecimal() else 0


def check_length(length: int, limit: int | None) -> None:
    """Raise TooLarge if the tensor is over the limit."""
    if limit is not None and length > limit:
        raise TooLarge(limit)


def expected_sha256(request: Request) -> str | None:
    """Return the digest in `Repr-Digest: sha-256=:…:` (RFC 9530) in hexadecimal; other algorithms are ignored."""
    header = request.headers.get("repr-digest", "")
    if "sha-256" not in header.lower():
        return None
    try:
        found = DIGEST.search(header)
        return base64.b64decode(found[1] if found else ":", validate=True).hex()
    except binascii.Error as error:
        raise BadTensor("Repr-Digest", "is not base64 between colons", "send sha-256=:BASE64:") from error


async def receive(
    stream: AsyncIterator[bytes] | FormFile | Body, upload: Upload, limit: int | None, reservation: Reservation
) -> None:
    """Write the stream to the disk, as far as the reservation covers it.

    While a thread writes and hashes one buffer, the other is filled: the two are all the memory that an upload takes.
    """
    body = stream if isinstance(stream, Body) else GatheredBody(_limited(stream, limit))
    # Views: to put a piece into a part of a bytearray itself would copy it twice.
    filling, spare = memoryview(bytearray(CHUNK)), memoryview(bytearray(CHUNK))
    async with _WriteQueue() as writes:
        while filled := await body.read_into(filling, RENEWAL_SECONDS):  # a slow one holds its reservation, too
            await writes.next(partial(_write, upload, filling[:filled], reservation))
            filling, spare = spare, filling


async def _limited(stream: AsyncIterator[bytes] | FormFile, limit: int | None) -> AsyncIterator[bytes]:
    """The pieces, as long as they are within the limit: their sum is not always known before."""
    size = 0
    async for piece in stream:
        size += len(piece)
        check_length(size, limit)
        yield piece


class _WriteQueue:
    """Run one write at a time, in a thread; on exit none is running, so the file can be closed."""

    def __init__(self) -> None:
        # Of its own, and not anyio's: a write begins at once, and not after the event loop has received more.
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


def _write(upload: Upload, content: memoryview, reservation: Reservation) -> None:
    reservation.reserve(upload.nbytes + len(content), upload.nbytes)
    upload.write(content)
