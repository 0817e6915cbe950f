"""Blobs as files below one folder of this machine, or of a file system that all machines of the server share."""

import fcntl
import io
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from sparse_ncp.worker.store.blobs import Blob, Blobs, BlobWriter, Disk
from sparse_ncp.worker.store.files import (
    PRIVATE_FOLDER,
    flush_all,
    fsync_folder,
    locked,
    open_private,
    private_folder,
    remove,
    size_of,
    start_writing_back,
    translate_storage_errors,
)

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,199})*")
# The folder of writes that are not finished. Each is locked by the process that writes it.
UNFINISHED = "uploads"
# Every folder below the root that the server writes. Each may be a mount of its own.
WRITTEN = (UNFINISHED, "tensors", "jobs", "keys", "sessions")
# A write that began more recently may not be locked yet.
UNLOCKED_SECONDS = 60.0
# Before it was written with locks, an unfinished file was hidden; after this time its writer cannot be alive.
HIDDEN_SECONDS = 3600.0
# A file that changed more recently could change again without a visible change of its times.
SETTLED_NANOSECONDS = 10**8
# Bytes per write. The system caches what is written at once as one block. A virtual machine gives blocks of 2 MB back
# to its host once they are free, and fetching them again took longer than all the rest of a write.
WRITE_BYTES = 1 << 18
# Bytes between two requests to begin writing to the disk.
WRITE_BACK_BYTES = 1 << 24
# How often to make a folder again which others remove because it is empty.
FOLDER_TRIES = 100


class LocalWriter(BlobWriter):
    """A file in the folder of unfinished writes. Its lock shows that its process is alive."""

    def __init__(self, path: Path, publish: Callable[[Path], bool], flush: bool = True) -> None:
        self._path = path
        self._publish = publish
        self._flush = flush
        self._nbytes = 0
        with translate_storage_errors():
            self._file = os.fdopen(open_private(path), "wb", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def write(self, chunk: bytes | memoryview) -> None:
        """Append a piece. Earlier pieces are written to the disk in the background."""
        with translate_storage_errors():
            view = memoryview(chunk)
            while view:
                view = view[self._file.write(view[:WRITE_BYTES]) :]
        if self._nbytes // WRITE_BACK_BYTES < (self._nbytes + len(chunk)) // WRITE_BACK_BYTES:
            start_writing_back(self._file.fileno())
        self._nbytes += len(chunk)

    def commit(self) -> None:
        self.commit_unless_lost()

    def commit_unless_lost(self) -> bool:
        """Commit, and return whether this writer published the blob."""
        with translate_storage_errors():
            if self._flush:
                os.fsync(self._file.fileno())
            published = self._publish(self._path)
        self.abort()
        return published

    def abort(self) -> None:
        with translate_storage_errors():
            try:
                self._path.unlink(missing_ok=True)
            finally:
                self._file.close()

    def local_path(self) -> Path:
        return self._path

    def __enter__(self) -> "LocalWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class LocalBlobs(Blobs, Disk):
    """Files below a folder, private to the server's account, on a file system that has hard links.

    A blob is written to a file in the folder ``uploads``, which is flushed and then renamed, or linked where it must be
    the first of its name. No blob may have a name in that folder.

    Parameters
    ----------
    root : Path
        The folder. It may hold other things beside the blobs.
    create : bool, optional
        Whether to make the folder if it is missing.
    """

    def __init__(self, root: Path, create: bool = True) -> None:
        self.root = root.absolute()
        self._unfinished = self.root / UNFINISHED
        if create:
            private_folder(self.root)
            private_folder(self._unfinished)

    def put(self, name: str, content: bytes, *, flush: bool = True) -> None:
        with self._write(self._path(name), flush, exclusive=False) as writer:
            writer.write(content)
            writer.commit()

    def put_if_absent(self, name: str, content: bytes, *, flush: bool = True) -> bool:
        path = self._path(name)
        if os.path.lexists(path):
            return False
        with self._write(path, flush, exclusive=True) as writer:
            writer.write(content)
            return writer.commit_unless_lost()

    def writer(self, name: str) -> LocalWriter:
        return self._write(self._path(name), flush=True, exclusive=False)

    def _write(self, path: Path, flush: bool, exclusive: bool) -> LocalWriter:
        """Write a file that appears as `path`; an exclusive one only if there is none."""

        def publish(written: Path) -> bool:
            for _ in range(FOLDER_TRIES):
                try:
                    os.link(written, path) if exclusive else written.rename(path)
                    break
                except FileExistsError:
                    return False
                except FileNotFoundError:
                    _make_folders(path.parent, flush)
            else:
                raise FileNotFoundError(path)
            if flush:
                with suppress(FileNotFoundError):  # the blob was deleted already, and its folder with it
                    fsync_folder(path.parent)
            return True

        return LocalWriter(self._unfinished / secrets.token_hex(8), publish, flush)

    def open(self, name: str) -> BinaryIO:
        with _missing_as_not_found(name):
            return self._path(name).open("rb")

    def open_range(self, name: str, start: int, nbytes: int) -> BinaryIO:
        file = self.open(name)
        file.seek(start)
        return io.BufferedReader(_Range(file, nbytes))

    def stat(self, name: str) -> Blob:
        with _missing_as_not_found(name):
            found = os.stat(self._path(name))
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFoundError(name)
            return _blob(name, found)

    def list(self, prefix: str) -> Iterator[Blob]:
        if prefix and not (prefix.endswith("/") and NAME.fullmatch(prefix[:-1])):
            raise ValueError(f"{prefix!r} is not a prefix of blobs: it must be empty or end with /")
        with translate_storage_errors():
            found = _blobs_in(self.root / prefix, prefix)
            yield from sorted(blob for blob in found if not blob.name.startswith(f"{UNFINISHED}/"))

    def delete(self, name: str) -> None:
        path = self._path(name)
        with translate_storage_errors(), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            path.unlink()
            with suppress(OSError):  # the folder has other blobs
                for folder in path.relative_to(self.root).parents[:-2]:
                    (self.root / folder).rmdir()

    def flush(self) -> None:
        flush_all(self.root)

    def local_path(self, name: str) -> Path:
        self.stat(name)
        return self._path(name)

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name) or name.startswith(f"{UNFINISHED}/"):
            raise ValueError(f"{name!r} is not the name of a blob")
        return self.root / name

    # The disk

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.root).free

    def total_bytes(self) -> int:
        return shutil.disk_usage(self.root).total

    def scratch_file(self) -> BinaryIO:
        with translate_storage_errors():
            return self._scratch()

    def _scratch(self, folder: str = ".") -> BinaryIO:
        return tempfile.TemporaryFile(dir=self.root / folder)

    def check_writable(self) -> None:
        for name in (".", *WRITTEN):
            what = "the data folder" if name == "." else f"the folder {name} of the data folder"
            with translate_storage_errors(what), suppress(FileNotFoundError), self._scratch(name) as file:
                file.write(b"ready")

    def unfinished_bytes(self) -> int:
        return size_of(self._unfinished)

    def unfinished(self) -> Sequence[Blob]:
        """List unlocked files, and hidden files of versions that did not lock writes."""
        hidden = [*self.root.glob("jobs/.*"), *self.root.glob("jobs/[!.]*/.*"), *self.root.glob("tensors/.*.*.*")]
        found = []
        for path in [*self._unfinished.iterdir(), *hidden]:
            age = HIDDEN_SECONDS if path.name.startswith(".") else UNLOCKED_SECONDS
            with suppress(FileNotFoundError, BlockingIOError):  # the latter from a file whose writer is alive
                file = path.stat()
                if time.time() - file.st_mtime > age:
                    with locked(path, wait=False):
                        found.append(_blob(str(path.relative_to(self.root)), file))
        return found

    def discard(self, name: str) -> None:
        path = self.root / name
        remove(path)
        if path.parent.parent.name == "jobs":
            with suppress(OSError):
                path.parent.rmdir()


class _Range(io.RawIOBase):
    """The next bytes of an open file."""

    def __init__(self, file: BinaryIO, nbytes: int) -> None:
        self._file = file
        self._left = nbytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = self._file.read(min(len(buffer), self._left))
        self._left -= len(content)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def holds_files(root: Path) -> bool:
    """Return whether there are tensors or jobs, which must have records. Imports no numpy, for the launcher.

    Tensors that have a pin or marker do not count: their upload may have ended before its record was added.
    """
    marked = {path.suffix.removeprefix(".") for path in _entries(root / UNFINISHED)}
    for path in _entries(root / "tensors"):
        if path.suffix == ".npy" and len(path.stem) == 64 and path.stem not in marked:
            return True
        if any(path.glob("manifest*.json")) and not any(path.glob("pin-*")):
            return True
    return any(not path.name.startswith(".") for path in _entries(root / "jobs"))


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _make_folders(path: Path, flush: bool) -> None:
    """Make a folder and its parents. They are durable, too, if the file is."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            with suppress(FileExistsError):
                os.mkdir(folder, PRIVATE_FOLDER)
            if flush:
                fsync_folder(folder.parent)
        except FileNotFoundError:
            return  # it was empty and removed, the caller tries again


def _blobs_in(folder: Path, prefix: str) -> Iterator[Blob]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _blobs_in(folder / entry.name, f"{prefix}{entry.name}/")
            else:
                with suppress(FileNotFoundError):
                    yield _blob(f"{prefix}{entry.name}", entry.stat())


def _blob(name: str, found: os.stat_result) -> Blob:
    """Describe a file. It has no version where its file system counts in whole seconds, or it changed just now."""
    settled = found.st_mtime_ns % 10**9 != 0 and time.time_ns() - found.st_mtime_ns >= SETTLED_NANOSECONDS
    version = f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}" if settled else None
    return Blob(name, found.st_size, time.time() - found.st_mtime, version)


@contextmanager
def _missing_as_not_found(name: str) -> Iterator[None]:
    try:
        with translate_storage_errors():
            yield
    except (NotADirectoryError, IsADirectoryError) as error:
        raise FileNotFoundError(name) from error
