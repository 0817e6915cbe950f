"""How much of the disk the store takes."""

import os
from collections.abc import Iterator
from pathlib import Path

KINDS = ("tensors", "jobs", "uploads")


def stored_bytes(root: Path) -> dict[str, int]:
    """By kind. Looks at every file: a second or so for a hundred thousand, so not for every request."""
    return {kind: sum(_sizes(root / kind)) for kind in KINDS}


def _sizes(folder: Path) -> Iterator[int]:
    """What is deleted while we look counts as nothing."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _sizes(Path(entry.path))
        else:
            yield _size(entry)


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0
