"""Small C libraries that stand between a program and the kernel (LD_PRELOAD), compiled when a test needs one."""

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

NUMBER = struct.Struct("l")


class SharedNumber:
    """A number in a file that a library has mapped: set here, seen there at once."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(NUMBER.pack(0))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), NUMBER.size)

    def set(self, value: int) -> None:
        self._page[:] = NUMBER.pack(value)


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def compile_library(folder: Path, source: Path) -> Path:
    library, found = folder / f"{source.stem}.so", compiler()
    if found is None:
        pytest.skip("no compiler")
    subprocess.run([found, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    return library


def write_wrapper(path: Path, environment: dict[str, str], command: str, after: Sequence[str]) -> None:
    """A script that runs the command with what it is given, and then with these. Values may name other variables."""
    settings = " ".join(f'{name}="{value}"' for name, value in environment.items())
    last = " ".join(f"'{part}'" for part in after)
    path.write_text(f"#!/bin/sh\nexec env {settings} '{command}' \"$@\" {last}\n")
    os.chmod(path, 0o700)
