"""Read the entries of a tensor larger than memory from its file, in order.

A memory map is enough for a file that fits into memory. With a larger one, pages that are accessed out of order are
read again and again. Here each pass reads every entry once, and reads ahead while the previous entries are processed.
"""

import math
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.gemm.blocks import BlockRegion, Tile, region_shape, shifted, whole_region
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.threads import split_evenly

# Bytes of a tile: rows in it meet the weights together. Two of them are held, of up to twice as many bytes.
STREAM_TILE_BYTES = 1 << 25
# Cuts inside of a block are at multiples of these: there a new block of the kernel's sums begins, too.
ALIGNED_ROWS, ALIGNED_COLUMNS = 24, 128
# Bytes read by one call, and number of concurrent calls: one waits for the disk while the other copies.
READ_BYTES, READERS = 1 << 22, 2
# Offsets, lengths and addresses of reads past the page cache are multiples of this.
PAGE = 4096
# A file is streamed if it is larger than this fraction of the available memory. If it is larger than all of it, it is
# read past the page cache: it would not stay there until the next pass, and would evict the pages of others.
SHARE_OF_MEMORY = 0.5
# Smaller files are never streamed: to find out how much memory is available takes as long as a sweep over them.
LEAST_BYTES = 1 << 24

Bytes: TypeAlias = NDArray[np.uint8]


class _Part(NamedTuple):
    """Entries to read at a time: an array of this shape, in runs of equal length that start at these entries."""

    shape: tuple[int, ...]
    starts: Sequence[int]


class FileEntries:
    """Contiguous entries in a file, starting at an offset."""

    def __init__(self, path: str, offset: int, dtype: np.dtype[Any], past_cache: bool) -> None:
        self._path, self._offset, self._dtype, self._past_cache = path, offset, dtype, past_cache
        self._buffers = [np.empty(0, dtype) for _ in range(2)]

    @classmethod
    def of(cls, entries: NDArray[Any]) -> "FileEntries | None":
        """Return the file entries of a C-ordered memory map that does not fit into memory, None for other arrays."""
        owner: Any = entries
        while owner is not None and not isinstance(owner, np.memmap):
            owner = getattr(owner, "base", None)
        if owner is None or owner.filename is None or entries.nbytes <= LEAST_BYTES:
            return None
        memory = memory_bytes()
        if entries.nbytes <= SHARE_OF_MEMORY * memory:
            return None
        while isinstance(owner.base, np.memmap):  # a view of a map has the file name, but not its own offset
            owner = owner.base
        offset = owner.offset + entries.ctypes.data - owner.ctypes.data
        return cls(os.fspath(owner.filename), offset, entries.dtype, entries.nbytes > memory)

    def tiles(self, shape: tuple[int, int, int], regions: Sequence[BlockRegion]) -> Iterator[Tile]:
        """Return an iterator over the tiles at these regions; a tile is valid until the next one is requested.

        A region consists of whole rows of one block, of whole blocks, or of some columns of some rows.
        """
        _, inner, after = shape
        parts = []
        for region in regions:
            blocks, rows, columns = region
            if columns.stop - columns.start < after:
                runs = product(range(blocks.start, blocks.stop), range(rows.start, rows.stop))
            else:  # one block or whole ones: side by side in the file
                runs = product((blocks.start,), (rows.start,))
            starts = [(b * inner + i) * after + columns.start for b, i in runs]
            parts.append(_Part(region_shape(region), starts))
        return map(Tile, regions, self._read(parts))

    def contiguous_runs(self, cuts: Sequence[slice]) -> Iterator[Array]:
        """Return an iterator over the entries of each slice, valid until the next ones are requested."""
        return self._read([_Part((cut.stop - cut.start,), (cut.start,)) for cut in cuts])

    def _read(self, parts: Sequence[_Part]) -> Iterator[Array]:
        """Yield the entries of each part while the next part is being read."""
        largest = max(math.prod(part.shape) for part in parts)
        if len(self._buffers[0]) < largest:
            self._buffers = [np.empty(largest, self._dtype) for _ in range(2)]
        with _reading(self._path, self._past_cache) as read, ThreadPoolExecutor(READERS, "reader") as readers:

            def begin(turn: int) -> list[Future[None]]:
                shape, starts = parts[turn]
                runs = self._buffers[turn % 2][: math.prod(shape)].view(np.uint8).reshape(len(starts), -1)
                return [
                    readers.submit(read, offset, piece)
                    for start, run in zip(starts, runs, strict=True)
                    for offset, piece in _pieces(self._offset + start * self._dtype.itemsize, run)
                ]

            coming = begin(0)
            for turn, part in enumerate(parts):
                for some in coming:
                    some.result()
                if turn + 1 < len(parts):
                    coming = begin(turn + 1)
                yield self._buffers[turn % 2][: math.prod(part.shape)].reshape(part.shape)


def stream_tiles(entries: Array, file: FileEntries | None, part: BlockRegion) -> Iterator[tuple[Tile, BlockRegion]]:
    """Return an iterator over tiles of a part, each with its region; an array in memory is a single tile."""
    whole = whole_region(entries.shape)
    if file is None:
        return iter([(Tile(whole, entries), part)])
    before, inner, after = region_shape(part)
    cuts = stream_tile_regions((before, inner, after), stream_tile_entries(entries.dtype))
    regions = [(shifted(b, part[0]), shifted(i, part[1]), shifted(a, part[2])) for b, i, a in cuts]
    return ((tile, tile.region) for tile in file.tiles(region_shape(whole), regions))


def contiguous_runs(flat: NDArray[Any], cuts: Sequence[slice]) -> Iterator[tuple[range, NDArray[Any]]]:
    """Return an iterator over groups of slices: their numbers, and the entries from the first to the last of them.

    The slices must be adjacent and in order. A group has about as many entries as a tile, in memory as in a file, so
    that sums taken group by group have the same bits. Entries are valid until the next group is requested.
    """
    most, groups, first = stream_tile_entries(flat.dtype), [0], 0
    for number, cut in enumerate(cuts):
        if cut.stop - cuts[first].start > most and number > first:
            first = number
            groups.append(number)
    numbers = [range(*edges) for edges in pairwise([*groups, len(cuts)])]
    wholes = [slice(cuts[some[0]].start, cuts[some[-1]].stop) for some in numbers]
    file = FileEntries.of(flat)
    return zip(
        numbers, (flat[whole] for whole in wholes) if file is None else file.contiguous_runs(wholes), strict=True
    )


class MatrixTile(NamedTuple):
    """Rows and columns of a part of a matrix, and its entries."""

    rows: slice
    columns: slice
    entries: NDArray[Any]


def matrix_tiles(matrix: NDArray[Any], most: int) -> Iterator[list[MatrixTile]]:
    """Yield groups of tiles of at most `most` entries, in memory order, grouped as by `contiguous_runs`."""
    rows, columns = matrix.shape
    wide = min(columns, most)
    regions = list(product(split_evenly(rows, -(-rows * wide // most)), split_evenly(columns, -(-columns // wide))))
    cuts = [
        slice(row.start * columns + column.start, (row.stop - 1) * columns + column.stop) for row, column in regions
    ]
    for some, entries in contiguous_runs(matrix.reshape(-1), cuts):
        tiles, first = [], cuts[some[0]].start
        for number in some:
            row, column = regions[number]
            flat = entries[cuts[number].start - first : cuts[number].stop - first]
            tiles.append(MatrixTile(row, column, flat.reshape(-1, column.stop - column.start)))
        yield tiles


def stream_tile_entries(dtype: np.dtype[Any]) -> int:
    """Return the number of entries that a tile should have."""
    return max(1, STREAM_TILE_BYTES // dtype.itemsize)


def stream_tile_regions(shape: tuple[int, int, int], most: int) -> Iterator[BlockRegion]:
    """Split before × inner × after into tiles of about `most` entries, in memory order.

    Whole blocks, or rows of one block, or where rows are long, parts of a few rows: a tile is one run in the file, or a
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
    """Return the memory in bytes that this process can use: what is available, or the limit of its control group."""

    def lines(path: str) -> list[str]:
        try:
            return Path(path).read_text().splitlines()
        except OSError:  # not on this system
            return []

    def number(path: str) -> int | None:
        words = next(iter(lines(path)), "")
        return int(words) if words.isdigit() else None

    found = [number("/sys/fs/cgroup/memory.max")]
    for line in lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found.append(number(f"/sys/fs/cgroup{path}/memory.max"))
        elif "memory" in controllers.split(","):
            found.append(number(f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"))
    available = (line for line in lines("/proc/meminfo") if line.startswith("MemAvailable:"))
    found.extend(1024 * int(line.split()[1]) for line in available)
    return min((limit for limit in found if limit is not None), default=1 << 62)


def _pieces(offset: int, run: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Split a run into pieces for one call each, at multiples of the page size in the file."""
    edges = range(offset - offset % READ_BYTES + READ_BYTES, offset + len(run), READ_BYTES)
    for start, stop in pairwise([offset, *edges, offset + len(run)]):
        yield start, run[start - offset : stop - offset]


@contextmanager
def _reading(path: str, past_cache: bool) -> Iterator[Callable[[int, Bytes], None]]:
    """Open a file, and give a function that reads bytes from an offset, safe to call from several threads."""
    file = _opened_past_cache(path) if past_cache else None
    if file is None:
        file = os.open(path, os.O_RDONLY)
        try:
            yield lambda offset, target: _read_fully(file, offset, target)
        finally:
            os.close(file)
        return
    rooms: SimpleQueue[Bytes] = SimpleQueue()
    for _ in range(READERS):
        rooms.put(np.frombuffer(mmap.mmap(-1, READ_BYTES + 2 * PAGE), np.uint8))  # starts at a page

    def read(offset: int, target: Bytes) -> None:
        """Read whole pages into a buffer, because neither the entries nor the target need be aligned."""
        room, before = rooms.get(), offset % PAGE
        wanted = before + len(target)
        try:
            _read_fully(file, offset - before, room[: wanted + -wanted % PAGE], wanted)
            np.copyto(target, room[before:wanted])
        finally:
            rooms.put(room)

    try:
        yield read
    finally:
        os.close(file)


def _opened_past_cache(path: str) -> int | None:
    """Open a file with O_DIRECT; return None if the system or the disk does not support that."""
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None
    try:
        os.preadv(file, [mmap.mmap(-1, PAGE)], 0)
    except OSError:
        os.close(file)
        return None
    return file


def _read_fully(file: int, offset: int, target: Bytes, wanted: int | None = None) -> None:
    """Fill the target from an offset in the file, which may end after the `wanted` bytes."""
    done, wanted = 0, len(target) if wanted is None else wanted
    while done < wanted:
        count = os.preadv(file, [target[done:].data], offset + done)
        done += count
        if done < wanted and (count == 0 or os.fstat(file).st_size < offset + wanted):
            raise OSError(f"the file of the tensor ends {wanted - done} bytes too early")
