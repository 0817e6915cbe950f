"""One upload: streamed to a temporary file, hashed on the way, kept only if it is a tensor."""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from sparse_ncp.worker.errors import BadTensor
from sparse_ncp.worker.store.files import (
    fsync_folder,
    locked,
    open_private,
    private_file,
    start_writing_back,
    translate_storage_errors,
)
from sparse_ncp.worker.store.npy_validation import Facts, inspect, read_header
from sparse_ncp.worker.store.store import IsUnused, Upload
from sparse_ncp.worker.store.verification import FileIdentity, Verified

# A smaller chunk is hashed sooner than a thread is woken.
LARGE_CHUNK = 1 << 18
# Bytes per write. The system caches what is written at once as one block. A virtual machine gives blocks of 2 MB back
# to its host once they are free, and fetching them again took longer than all the rest of a write.
WRITE_BYTES = 1 << 18
# Bytes between two requests to begin writing to the disk.
WRITE_BACK_BYTES = 1 << 24


class LocalUpload(Upload):
    """A file in the folder of uploads; a lock on it says that it has a writer."""

    def __init__(
        self,
        path: Path,
        tensors: Path,
        lock: Path,
        remove_content: Callable[[str, IsUnused], object],
        remember: Callable[[str, Verified], None],
    ) -> None:
        self._path = path
        self._tensors = tensors
        self._lock = lock
        self._remove_content = remove_content
        self._remember = remember
        self._open = ExitStack()  # the file, the marker and their locks
        self._keeping = ExitStack()  # the lock under which no content is removed
        self._marker: Path | None = None
        self._digest = hashlib.sha256()
        self._hasher = ThreadPoolExecutor(1, "hash")
        self.nbytes = 0

    def __enter__(self) -> "LocalUpload":
        with translate_storage_errors():
            self._file = self._open.enter_context(os.fdopen(open_private(self._path), "wb", buffering=0))
        self._open.enter_context(locked(self._path))
        self._open.enter_context(self._hasher)
        return self

    def write(self, chunk: bytes | memoryview) -> None:
        """Write and hash it, side by side; what was written before is on its way to the disk meanwhile."""
        hashed = self._hasher.submit(self._digest.update, chunk) if len(chunk) >= LARGE_CHUNK else None
        try:
            with translate_storage_errors():
                view = memoryview(chunk)
                while view:
                    view = view[self._file.write(view[:WRITE_BYTES]) :]
        finally:  # the caller may use its buffer again
            if hashed is None:
                self._digest.update(chunk)
            else:
                hashed.result()
        if self.nbytes // WRITE_BACK_BYTES < (self.nbytes + len(chunk)) // WRITE_BACK_BYTES:
            start_writing_back(self._file.fileno())
        self.nbytes += len(chunk)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def keep(self, expected_sha256: str | None = None, threads: int | None = None) -> tuple[str, Facts]:
        """Check the file, then rename it to its digest: the same bytes are stored once."""
        sha256 = self.sha256
        if expected_sha256 is not None and expected_sha256.lower() != sha256:
            raise BadTensor("Repr-Digest", f"does not match: the body's SHA-256 is {sha256}", "upload it again")
        read_header(self._path)  # what is not a tensor at all is refused before anything is flushed
        with translate_storage_errors(), ThreadPoolExecutor(1) as thread:
            flushed = thread.submit(os.fsync, self._file.fileno())  # while the entries are read
            facts, found = inspect(self._path, threads)
            flushed.result()
            self._keeping.enter_context(locked(private_file(self._lock), shared=True))
            self._leave_marker(sha256)
            self._path.rename(self._tensors / f"{sha256}.npy")
            fsync_folder(self._tensors)
        self._remember(sha256, Verified.now(FileIdentity.of(self._file.fileno()), found))
        return sha256, facts

    def _leave_marker(self, sha256: str) -> None:
        """Create the file by which cleanup finds the bytes if we die before their record is added."""
        self._marker = private_file(self._path.with_name(f"{self._path.name}.{sha256}"))
        self._open.enter_context(locked(self._marker))

    def discard(self, is_unused: IsUnused) -> None:
        self._keeping.close()  # whoever removes content needs the lock
        self._remove_content(self.sha256, is_unused)
        self._remove_marker()

    def _remove_marker(self) -> None:
        if self._marker is not None:
            self._marker.unlink(missing_ok=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._keeping, self._open, translate_storage_errors():
            self._path.unlink(missing_ok=True)
            if kind is None:  # else the record was not added: cleanup finds out whether the bytes are needed
                self._remove_marker()


def kept_digest(path: Path) -> str | None:
    """The digest that an upload's marker names; None for the upload itself."""
    digest = path.suffix.removeprefix(".")
    return digest if len(digest) == 64 else None
