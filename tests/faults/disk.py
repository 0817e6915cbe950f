"""A small disk that can be filled to the last page."""

import ctypes
import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

PAGE = 4096
NEW_MOUNTS = 0x20000  # CLONE_NEWNS


class Disk:
    """In memory, with room for 24 MB."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """To the last page."""
        with self._filler.open("ab", buffering=0) as filler:
            try:
                while filler.write(bytes(PAGE)) == PAGE:
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        self._filler.unlink()


@contextmanager
def small_disk(path: Path) -> Iterator[Disk]:
    if not _has_own_mounts():
        pytest.skip("only root may mount a small disk")
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", path], check=True)
    yield Disk(path)
    subprocess.run(["umount", path], check=True)


@cache
def _has_own_mounts() -> bool:
    """From now on nobody else sees what this process mounts, and it goes with the process, however that ends."""
    apart = ctypes.CDLL(None).unshare(NEW_MOUNTS) == 0
    return apart and subprocess.run(["mount", "--make-rprivate", "/"], check=False).returncode == 0
