"""One upload: streamed to a temporary file, hashed on the way, kept only if it is a tensor."""

import fcntl
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from worker.errors import BadTensor
from worker.files import flush_folder, full_is_store_full, open_private
from worker.npy import Facts, inspect, read_header


class Upload:
    """A context: whatever was not kept when it ends is gone.

    The tensor's record must be added before it ends: until then no one else may remove the same content.
    """

    def __init__(self, path: Path, tensors: Path, lock: Path) -> None:
        self._path = path
        self._tensors = tensors
        self._lock_path = lock
        self._lock: int | None = None
        self._note: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self.nbytes = 0

    def __enter__(self) -> "Upload":
        with full_is_store_full():
            self._file = os.fdopen(open_private(self._path), "wb", buffering=0)
        # Tells a cleaner that this file has a writer.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def write(self, chunk: bytes | memoryview) -> None:
        with full_is_store_full():
            view = memoryview(chunk)
            while view:
                view = view[self._file.write(view) :]
        self._digest.update(chunk)
        self.nbytes += len(chunk)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def keep(self, expected_sha256: str | None = None, threads: int | None = None) -> tuple[str, Facts]:
        """Check the file, make it durable under its digest; the same bytes are stored once."""
        sha256 = self.sha256
        if expected_sha256 is not None and expected_sha256.lower() != sha256:
            raise BadTensor("Repr-Digest", f"does not match: the body's SHA-256 is {sha256}", "upload it again")
        read_header(self._path)  # what is no tensor at all is refused before anything is flushed
        with full_is_store_full(), ThreadPoolExecutor(1) as beside:
            flushed = beside.submit(os.fsync, self._file.fileno())  # while the entries are looked at
            facts = inspect(self._path, threads)
            flushed.result()
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            self._leave_note(sha256)
            self._path.rename(self._tensors / f"{sha256}.npy")
            flush_folder(self._tensors)
        return sha256, facts

    def _leave_note(self, sha256: str) -> None:
        """If we die before the record is added, the next start finds by this which bytes nobody needs."""
        self._note_path = self._path.with_name(f"{self._path.name}.{sha256}")
        self._note = os.fdopen(open_private(self._note_path), "wb")
        fcntl.flock(self._note, fcntl.LOCK_EX)

    def unlock(self) -> None:
        """From now on others may remove the same content."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def drop_note(self) -> None:
        if self._note is not None:
            self._note_path.unlink(missing_ok=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)
        self._file.close()
        if kind is None:  # else the record was not added: the next start looks whether the bytes are needed
            self.drop_note()
        if self._note is not None:
            self._note.close()
        self.unlock()


def kept_digest(path: Path) -> str | None:
    """The digest that an upload's note names; None for the upload itself."""
    return path.suffix.removeprefix(".") or None
