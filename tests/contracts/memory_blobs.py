"""Blobs in the memory of one process, without a local path: what is above the protocol must do with this."""

import io
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import BinaryIO

from sparse_ncp.worker.store.blobs import Blob, Blobs, BlobWriter, Disk
from sparse_ncp.worker.store.local_blobs import NAME


class MemoryBlobs(Blobs, Disk):
    """A dictionary behind a lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stored: dict[str, tuple[bytes, float, str]] = {}
        self._versions = itertools.count()

    def put(self, name: str, content: bytes, *, flush: bool = True) -> None:
        with self._lock:
            self._stored[_checked(name)] = content, time.monotonic(), str(next(self._versions))

    def put_if_absent(self, name: str, content: bytes, *, flush: bool = True) -> bool:
        with self._lock:
            if _checked(name) in self._stored:
                return False
            self._stored[name] = content, time.monotonic(), str(next(self._versions))
            return True

    def open(self, name: str) -> BinaryIO:
        return io.BytesIO(self._get(name)[0])

    def open_range(self, name: str, start: int, nbytes: int) -> BinaryIO:
        return io.BytesIO(self._get(name)[0][start : start + nbytes])

    def stat(self, name: str) -> Blob:
        content, written, version = self._get(name)
        return Blob(name, len(content), time.monotonic() - written, version)

    def list(self, prefix: str) -> Iterator[Blob]:
        if prefix and not (prefix.endswith("/") and NAME.fullmatch(prefix[:-1])):
            raise ValueError(f"{prefix!r} is not a prefix of blobs")
        with self._lock:
            return iter([self.stat(name) for name in sorted(self._stored) if name.startswith(prefix)])

    def delete(self, name: str) -> None:
        with self._lock:
            self._stored.pop(_checked(name), None)

    def writer(self, name: str) -> "MemoryWriter":
        return MemoryWriter(self, _checked(name))

    def flush(self) -> None:
        pass

    def free_bytes(self) -> int:
        return 1 << 40

    def total_bytes(self) -> int:
        return 1 << 40

    def scratch_file(self) -> BinaryIO:
        return io.BytesIO()

    def check_writable(self) -> None:
        pass

    def unfinished_bytes(self) -> int:
        return 0

    def unfinished(self) -> Sequence[Blob]:
        return []

    def discard(self, name: str) -> None:
        raise FileNotFoundError(name)

    def _get(self, name: str) -> tuple[bytes, float, str]:
        try:
            return self._stored[_checked(name)]
        except KeyError as error:
            raise FileNotFoundError(name) from error


class MemoryWriter(BlobWriter):
    def __init__(self, blobs: MemoryBlobs, name: str) -> None:
        self._blobs = blobs
        self._name = name
        self._written = bytearray()

    @property
    def nbytes(self) -> int:
        return len(self._written)

    def write(self, chunk: bytes | memoryview) -> None:
        self._written += chunk

    def commit(self) -> None:
        self._blobs.put(self._name, bytes(self._written))

    def abort(self) -> None:
        pass

    def local_path(self) -> None:
        return None

    def __enter__(self) -> "MemoryWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a blob")
    return name
