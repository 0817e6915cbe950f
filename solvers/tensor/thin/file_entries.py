"""Entries that are read from their file, slab by slab in the order in which they lie there.

A memory map does where the file fits into memory. Where it does not, pages that are read here and there are read again
and again; slabs are read once per product, while the one before is worked on.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from solvers.tensor.contraction import Place
from solvers.tensor.products import Array

# Bytes of a slab: rows in it meet the weights together. Two of them are held.
SLAB_BYTES = 1 << 26
# Cuts inside of a block are at multiples of these: there a new block of the kernel's sums begins, too.
ALIGNED_ROWS, ALIGNED_COLUMNS = 32, 128
# Bytes that one call reads.
READ_BYTES = 1 << 23
# A file is streamed if it is larger than this share of the memory that there is.
SHARE_OF_MEMORY = 0.5
# A smaller one never is: nobody asks how much memory there is, which takes as long as a sweep over a small tensor.
LEAST_BYTES = 1 << 24


class FileEntries:
    """Entries before × inner × after that lie in a file, from an offset on."""

    def __init__(self, path: str, offset: int, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
        self._path, self._offset, self._shape, self._dtype = path, offset, shape, dtype
        self._buffers: list[Array] = []

    @classmethod
    def of(cls, entries: Array) -> "FileEntries | None":
        """Those of a memory map that does not fit into memory; None for any other array."""
        owner: Any = entries
        while owner is not None and not isinstance(owner, np.memmap):
            owner = getattr(owner, "base", None)
        if owner is None or owner.filename is None or entries.nbytes <= LEAST_BYTES:
            return None
        if entries.nbytes <= SHARE_OF_MEMORY * memory_bytes():
            return None
        while isinstance(owner.base, np.memmap):  # a view of a map tells the file, but not its own place in it
            owner = owner.base
        before, inner, after = entries.shape if entries.ndim == 3 else (1, 1, entries.size)
        offset = owner.offset + entries.ctypes.data - owner.ctypes.data
        return cls(os.fspath(owner.filename), offset, (before, inner, after), entries.dtype)

    def slabs(self) -> Iterator[tuple[Place, Array]]:
        """Every slab and its entries, in order; they hold until the next one is asked for."""
        places = list(slab_places(self._shape, max(1, SLAB_BYTES // self._dtype.itemsize)))
        largest = max(int(np.prod([part.stop - part.start for part in place])) for place in places)
        if not self._buffers:
            self._buffers = [np.empty(largest, self._dtype) for _ in range(2)]
        with Path(self._path).open("rb", buffering=0) as file, ThreadPoolExecutor(1, "reader") as reader:

            def read(turn: int) -> Array:
                return self._read(file.fileno(), places[turn], self._buffers[turn % 2])

            coming = reader.submit(read, 0)
            for turn, place in enumerate(places):
                entries = coming.result()
                if turn + 1 < len(places):
                    coming = reader.submit(read, turn + 1)
                yield place, entries

    def _read(self, file: int, place: Place, buffer: Array) -> Array:
        _, inner, after = self._shape
        shape = tuple(part.stop - part.start for part in place)
        entries = buffer[: shape[0] * shape[1] * shape[2]].reshape(shape)
        blocks, rows, columns = place
        if columns.stop - columns.start < after:
            runs = [((b * inner + i) * after + columns.start, entries[b - blocks.start, i - rows.start])
                    for b, i in product(range(blocks.start, blocks.stop), range(rows.start, rows.stop))]  # fmt: skip
        else:  # one block or whole ones: side by side in the file
            runs = [((blocks.start * inner + rows.start) * after, entries)]
        for start, part in runs:
            _read_fully(file, self._offset + start * self._dtype.itemsize, part)
        return entries


def slab_places(shape: tuple[int, int, int], most: int) -> Iterator[Place]:
    """Cut before × inner × after into slabs of about `most` entries, in memory order.

    Whole blocks, or rows of one block, or where rows are long, parts of a few rows: a slab is one run in the file, or a
    few long ones. Cuts inside of a block are where blocks of the sums begin.
    """
    before, inner, after = shape
    everything = slice(0, inner), slice(0, after)
    if inner * after <= most:
        step = max(1, most // (inner * after))
        yield from ((slice(b, min(before, b + step)), *everything) for b in range(0, before, step))
        return
    rows = max(1, most // after // ALIGNED_ROWS) * ALIGNED_ROWS
    columns = after if rows * after <= 2 * most else max(1, most // rows // ALIGNED_COLUMNS) * ALIGNED_COLUMNS
    for b, i, a in product(range(before), range(0, inner, rows), range(0, after, columns)):
        yield slice(b, b + 1), slice(i, min(inner, i + rows)), slice(a, min(after, a + columns))


def memory_bytes() -> int:
    """The memory that this process could have: what is available, or the limit of its control group if that is less."""
    found = [_number(Path("/sys/fs/cgroup/memory.max"))]
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found.append(_number(Path(f"/sys/fs/cgroup{path}/memory.max")))
        elif "memory" in controllers.split(","):
            found.append(_number(Path(f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes")))
    available = (line for line in _lines(Path("/proc/meminfo")) if line.startswith("MemAvailable:"))
    found.extend(1024 * int(line.split()[1]) for line in available)
    return min((number for number in found if number is not None), default=1 << 62)


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no such file, or no number in it."""
    words = next(iter(_lines(path)), "")
    return int(words) if words.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not on this system
        return []


def _read_fully(file: int, offset: int, entries: Array) -> None:
    target = entries.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(target):
        count = os.preadv(file, [target[done : done + READ_BYTES]], offset + done)
        if count == 0:
            raise OSError(f"the file of the tensor ends {len(target) - done} bytes too early")
        done += count
