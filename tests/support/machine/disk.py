"""Disks that can be filled, made read-only, made to fail or cut off from power, in a mount namespace of their own."""

import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from tests.support.stack import wait_for

PAGE = 4096
NEW_MOUNTS = 0x20000  # CLONE_NEWNS
# ext4's own ioctl: every read and write fails from now on, and what was not flushed is lost.
SHUTDOWN, WITHOUT_FLUSHING = 0x8004587D, struct.pack("I", 2)


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

    def make_read_only(self, yes: bool = True) -> None:
        """As a kernel does with a disk that fails. Refused while a file is being written, so repeat it."""
        mode = "ro" if yes else "rw"
        wait_for(lambda: subprocess.run(["mount", "-o", f"remount,{mode}", self.path], check=False).returncode == 0)


@contextmanager
def small_disk(path: Path) -> Iterator[Disk]:
    if not has_own_mounts():
        pytest.skip("only root may mount a small disk")
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", path], check=True)
    yield Disk(path)
    _unmount(path)


class LoopDisk:
    """An ext4 file system in a file: it loses power, and comes back with what its journal has."""

    def __init__(self, folder: Path, path: Path, megabytes: int) -> None:
        self.path = path
        self._image = folder / f"{path.name}.ext4"
        with self._image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", self._image], check=True)
        path.mkdir(exist_ok=True)
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self._image, self.path], check=True)

    def unmount(self) -> None:
        """Unmount, repeating while a file is open."""
        _unmount(self.path)

    def cut_power(self) -> None:
        """From now on everything answers EIO, until it is unmounted and mounted again."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, SHUTDOWN, WITHOUT_FLUSHING)
        finally:
            os.close(folder)


@contextmanager
def loop_disk(folder: Path, path: Path, megabytes: int = 64) -> Iterator[LoopDisk]:
    if not can_cut_power():
        pytest.skip("this machine has no loop devices with ext4")
    disk = LoopDisk(folder, path, megabytes)
    try:
        yield disk
    finally:
        disk.unmount()


@contextmanager
def covered_read_only(path: Path) -> Iterator[None]:
    """Make everything below the path read-only. Files that are open already stay as they are.

    The mount is made beside the path and moved there: the kernel refuses while a file on it is open for writing.
    """
    with tempfile.TemporaryDirectory(prefix="ncp-read-only-") as aside:
        subprocess.run(["mount", "--bind", path, aside], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", aside], check=True)
            subprocess.run(["mount", "--move", aside, path], check=True)
        except subprocess.CalledProcessError:
            subprocess.run(["umount", aside], check=True)
            raise
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def _unmount(path: Path) -> None:
    wait_for(lambda: _silently("umount", path), what="the disk to be unused")


def _silently(*command: str | Path) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@cache
def has_own_mounts() -> bool:
    """Give this process a mount namespace of its own, which ends with the process."""
    apart = ctypes.CDLL(None).unshare(NEW_MOUNTS) == 0
    return apart and _silently("mount", "--make-rprivate", "/")


@cache
def can_cut_power() -> bool:
    """Whether loop devices, ext4 and its shutdown are there: tried once."""
    if not has_own_mounts():
        return False
    with tempfile.TemporaryDirectory() as folder, suppress(OSError, subprocess.CalledProcessError):
        disk = LoopDisk(Path(folder), Path(folder) / "tried", megabytes=2)
        disk.cut_power()
        disk.unmount()
        return True
    return False
