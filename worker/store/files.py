"""Files on the disk: written whole or not at all, private, locked, measured, removed."""

import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from sparse_ncp.worker.errors import StoreFull, StoreUnavailable

# Only the account that runs the server reads what its users uploaded.
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
CHUNK = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
SYNC_FILE_RANGE_WRITE = 2
# How often to try again to remove a folder into which files are being written.
WRITERS = 10
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Errors of a disk that fails, is mounted read-only, or belongs to a machine that does not answer.
IO_ERRNOS = {
    errno.EIO, errno.EROFS, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.ETIMEDOUT,
    errno.EHOSTDOWN, errno.EREMOTEIO, errno.EUCLEAN, errno.ENOMEDIUM,
}  # fmt: skip


def is_storage_failure(error: OSError) -> bool:
    """Return whether an error comes from the disk itself, rather than from a wrong path or permission."""
    return isinstance(error, StoreUnavailable) or error.errno in IO_ERRNOS


@contextmanager
def translate_storage_errors(what: str = "the disk") -> Iterator[None]:
    """Raise StoreFull or StoreUnavailable in place of an error that comes from the disk itself."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StoreFull(error.errno, f"{what} has no room left") from error
        if is_storage_failure(error):
            reason = os.strerror(error.errno or 0)
            raise StoreUnavailable(error.errno, f"{what} cannot be used: {reason}") from error
        raise


def private_folder(path: Path) -> Path:
    """Create a private folder and its parents, if they are missing, and return its path."""
    with translate_storage_errors():
        path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    return path


def remove(path: Path) -> None:
    """Remove a file or a whole folder at once, so that no reader finds half of it. Others may be removing it, too.

    It is renamed before its type is looked at, because another process may replace or remove it in between.
    """
    aside = path.with_name(f".{path.name.removeprefix('.')}.{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):
        path.rename(aside)
        if not aside.is_dir():
            aside.unlink()
            return
        for left in reversed(range(WRITERS)):
            try:
                shutil.rmtree(aside, onerror=_ignore_missing)
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not left:  # else a file was written into it meanwhile
                    raise


def _ignore_missing(_function: object, _path: str, error: Any) -> None:
    if not issubclass(error[0], FileNotFoundError):
        raise error[1]


def size_of(path: Path) -> int:
    """Return the size of a file, or of all files in a folder. Files that are removed meanwhile do not count."""
    files = [str(path)]
    if path.is_dir():
        files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    found = 0
    for file in files:
        with suppress(FileNotFoundError):
            found += os.stat(file).st_size
    return found


def open_private(path: Path) -> int:
    """Create a file for reading and writing that only this account can open; return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)


def private_file(path: Path) -> Path:
    """Create an empty file if there is none, and return its path."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))
    return path


@contextmanager
def locked(path: Path, shared: bool = False, wait: bool = True) -> Iterator[int]:
    """Lock an existing file or folder, and yield its descriptor.

    Raise BlockingIOError if it is locked already and `wait` is false. It is only closed, never unlocked: a child that
    inherits the descriptor keeps the lock until it exits.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)


def atomic_write(path: Path, content: bytes, flush: bool = True) -> None:
    """Replace a file atomically. The new content survives a power cut once this returns.

    Without `flush`, it does so only after the next `flush_all`, which is much faster for many small files.
    """
    with atomic_writer(path, flush) as file:
        file.write(content)


@contextmanager
def atomic_writer(path: Path, flush: bool = True) -> Iterator[BinaryIO]:
    """Replace a file atomically, written in pieces; the file appears when the context ends without an error."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with translate_storage_errors():
        try:
            with os.fdopen(open_private(aside), "wb") as file:
                yield file
                if flush:
                    file.flush()
                    os.fsync(file.fileno())
            aside.rename(path)
        finally:
            aside.unlink(missing_ok=True)
        if flush:
            fsync_folder(path.parent)


def flush_all(folder: Path) -> None:
    """Flush everything that was written to the file system of a folder."""
    with translate_storage_errors():
        system = getattr(LIBC, "syncfs", None)
        if system is None:
            os.sync()
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if system(descriptor) != 0:
                raise OSError(ctypes.get_errno(), "the files could not be flushed")
        finally:
            os.close(descriptor)


def start_writing_back(descriptor: int) -> None:
    """Start writing a file to the disk without waiting, so that a later flush has little left to do.

    Systems that cannot do this leave all work to the flush, which also reports errors.
    """
    system = getattr(LIBC, "sync_file_range", None)
    if system is not None:
        system(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(SYNC_FILE_RANGE_WRITE))


def append(path: Path, content: bytes, place: int | None = None) -> None:
    """Write and flush to the end of a file, or from `place` on. A missing file is created."""
    with (
        translate_storage_errors(),
        os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE), "r+b") as file,
    ):
        file.seek(0, 2) if place is None else file.seek(place)
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def temporary_file(folder: Path, content: bytes) -> BinaryIO:
    """Return a file without a name, open for reading, which disappears when it is closed."""
    with translate_storage_errors(), ExitStack() as unless_written:
        file = unless_written.enter_context(tempfile.TemporaryFile(dir=folder))
        file.write(content)
        file.seek(0)
        unless_written.pop_all()
        return file


def fsync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
