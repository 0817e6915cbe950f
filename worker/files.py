"""Files that are whole or absent: written aside, flushed to the disk, renamed."""

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from worker.errors import StoreFull

# Only the account that runs the server reads what its users uploaded.
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
CHUNK = 1 << 20
# Files that somebody may put into a folder while it is removed.
WRITERS = 10
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def full_is_store_full() -> Iterator[None]:
    """Name the one failure of a disk that a caller can do something about."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StoreFull(error.errno, "the disk has no room left") from error
        raise


def private_folder(path: Path) -> Path:
    """The folder, made if it is missing, its parents too."""
    with full_is_store_full():
        path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    return path


def remove(path: Path) -> None:
    """A file or a whole folder, gone at once: no reader finds half of it. Somebody else may be removing it too.

    Moved aside before anybody asks what it is: another may put it there, or take it away, between asking and acting.
    """
    aside = path.with_name(f".{path.name.removeprefix('.')}.{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):
        path.rename(aside)
        if aside.is_dir():
            _remove_folder(aside, WRITERS)
        else:
            aside.unlink()


def _remove_folder(path: Path, tries: int) -> None:
    """Again if somebody was just putting a file into it: that one does not find it any more."""
    try:
        shutil.rmtree(path, onerror=_ignore_missing)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY or tries == 1:
            raise
        _remove_folder(path, tries - 1)


def _ignore_missing(_function: object, _path: str, error: Any) -> None:
    if not issubclass(error[0], FileNotFoundError):
        raise error[1]


def folder_bytes(path: Path) -> int:
    """The length of all files below. Some may be going away just now: those count nothing."""
    found = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                found += os.stat(os.path.join(folder, name)).st_size
    return found


def open_private(path: Path) -> int:
    """A new file that nobody else may read, open for writing."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)


def write_whole(path: Path, content: bytes) -> None:
    """After this returns the file survives a power cut; before, its old content does."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with full_is_store_full():
        try:
            with os.fdopen(open_private(aside), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.rename(path)
        finally:
            aside.unlink(missing_ok=True)
        flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """A rename is durable once its folder is."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
