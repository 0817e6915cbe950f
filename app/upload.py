"""The bytes of an upload on their way to the disk: streamed, counted, written and hashed in a thread."""

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Callable
from errno import ENOSPC
from functools import partial

from anyio import to_thread
from fastapi import Request

from app.multipart import FormFile
from app.problems import TooLarge, UnsupportedMedia
from worker.errors import BadTensor, StoreFull
from worker.store import Store
from worker.uploads import Upload

# Written at once: a hop to a thread per network packet would cost more than the write.
CHUNK = 1 << 20
DIGEST = re.compile(r"(?:^|,)\s*sha-256\s*=\s*:([^:]*):")
# What a multipart form adds around its file: boundaries and part headers.
FORM_ALLOWANCE = 64 << 10


def tensor_stream(request: Request) -> AsyncIterator[bytes] | FormFile:
    """The tensor's bytes, however they were sent."""
    content_type = request.headers.get("content-type", "")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("The body is compressed.", "send the .npy file as it is")
    if content_type.lower().startswith("multipart/form-data"):
        return FormFile(content_type, request.stream())
    if content_type.lower().startswith(("multipart/", "application/json")):
        problem, remedy = (
            f"A body of type {content_type} is no tensor.",
            "send application/octet-stream or multipart/form-data",
        )
        raise UnsupportedMedia(problem, remedy)
    return request.stream()


def told_length(request: Request) -> int:
    """The bytes that the tensor will have at least, by Content-Length alone; 0 if it says nothing."""
    told = request.headers.get("content-length", "")
    allowance = FORM_ALLOWANCE if request.headers.get("content-type", "").lower().startswith("multipart/") else 0
    return max(0, int(told) - allowance) if told.isdecimal() else 0


def check_length(length: int, limit: int | None) -> None:
    if limit is not None and length > limit:
        raise TooLarge(limit)


def check_room(store: Store, length: int, spare: int) -> None:
    """StoreFull if so many bytes more would leave less than `spare` of the disk."""
    if store.free_bytes() - length < spare:
        raise StoreFull(ENOSPC, "the disk has no room left for this")


def expected_sha256(request: Request) -> str | None:
    """The digest in `Repr-Digest: sha-256=:…:` (RFC 9530) as hexadecimal; other algorithms are left alone."""
    told = request.headers.get("repr-digest", "")
    if "sha-256" not in told.lower():
        return None
    try:
        found = DIGEST.search(told)
        return base64.b64decode(found[1] if found else ":", validate=True).hex()
    except binascii.Error as error:
        raise BadTensor("Repr-Digest", "is not base64 between colons", "send sha-256=:BASE64:") from error


async def receive(
    stream: AsyncIterator[bytes] | FormFile, upload: Upload, limit: int | None, has_room: Callable[[], None]
) -> None:
    """Everything to the disk, never more than a few pieces in memory. `has_room` is asked as it grows.

    While a thread writes and hashes one buffer, the other is filled: the two are all the memory that an upload takes.
    """
    filling, spare = bytearray(CHUNK), bytearray(CHUNK)
    filled = size = 0
    async with _InTurn() as writes:
        async for piece in stream:
            size += len(piece)
            check_length(size, limit)
            rest = memoryview(piece)
            while rest:
                taken = rest[: CHUNK - filled]
                filling[filled : filled + len(taken)] = taken
                filled, rest = filled + len(taken), rest[len(taken) :]
                if filled == CHUNK:
                    await writes.next(partial(_write, upload, memoryview(filling), has_room))
                    filling, spare, filled = spare, filling, 0
        await writes.next(partial(_write, upload, memoryview(filling)[:filled], has_room))


class _InTurn:
    """One write at a time, in a thread. At the end none is under way: the file may be closed."""

    def __init__(self) -> None:
        self._running: asyncio.Future[None] | None = None

    async def __aenter__(self) -> "_InTurn":
        return self

    async def next(self, write: Callable[[], None]) -> None:
        await self._settled()
        self._running = asyncio.ensure_future(to_thread.run_sync(write))

    async def __aexit__(self, *_: object) -> None:
        await self._settled()

    async def _settled(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running


def _write(upload: Upload, content: memoryview, has_room: Callable[[], None]) -> None:
    has_room()
    upload.write(content)
