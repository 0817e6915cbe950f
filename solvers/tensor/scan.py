"""One pass over all entries of a tensor: their range and norm, and those that ask for a decision."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from solvers.tensor.threads import Threads, slabs

# Entries read at a time: small enough to stay in the second-level cache for all passes over a chunk.
CHUNK = 1 << 15
# Chunks of a stretch: one stretch is read while the one before is scanned.
STRETCH = 16

Booleans: TypeAlias = NDArray[np.bool_]
Box: TypeAlias = tuple[slice, ...]
# Gives a stretch of the entries, in memory order; it holds until the next but one is asked for.
Read: TypeAlias = Callable[[slice], NDArray[Any]]
Tell: TypeAlias = Callable[[float], None]


@dataclass(frozen=True)
class Occurrence:
    """How many entries are of a kind, and the index of the first in memory, modes from 0; () if there is none."""

    count: int
    first: tuple[int, ...]

    def counted(self, adjective: str) -> str:
        """In words: "2 entries are negative"."""
        return f"1 entry is {adjective}" if self.count == 1 else f"{self.count} entries are {adjective}"


@dataclass(frozen=True)
class Scan:
    """What one pass over all entries finds. All but `nan` is over the entries that are observed: not NaN, not masked.

    Where no entry is observed, minimum and maximum are NaN. The positive norm and sum take negative entries as zero.
    """

    minimum: float
    maximum: float
    norm: float
    positive_norm: float
    positive_sum: float
    observed: int
    nan: Occurrence
    infinite: Occurrence
    negative: Occurrence


class _Part(NamedTuple):
    """The same of a chunk; a place counts in memory order, and is −1 where there is none."""

    low: float
    high: float
    squares: float
    positive_squares: float
    positive_sum: float
    observed: int
    places: tuple[tuple[int, int], ...] = ((0, -1),) * 3


def boxes(shape: Sequence[int], most: int = CHUNK) -> Iterator[Box]:
    """Cut an array in C order into boxes that are contiguous in memory, of at most `most` entries each."""
    axis = next(axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= most)
    rows = max(1, most // math.prod(shape[axis + 1 :]))
    leading = product(*([slice(i, i + 1) for i in range(length)] for length in shape[:axis]))
    whole = (slice(None),) * (len(shape) - axis - 1)
    for before, slab in product(leading, slabs(shape[axis], -(-shape[axis] // rows))):
        yield (*before, slab, *whole)


def part_of(mask: Booleans, box: Box) -> Booleans:
    """The box of a mask whose modes have the tensor's length or 1."""
    return mask[tuple(slice(None) if length == 1 else cut for length, cut in zip(mask.shape, box, strict=True))]


def scan(
    tensor: NDArray[Any],
    threads: Threads,
    mask: Booleans | None = None,
    read: Read | None = None,
    tell: Tell | None = None,
) -> Scan:
    """Scan a contiguous tensor, chunk by chunk and without copying it; where `mask` is false, nothing is observed.

    Where there is no mask, `read` may give the entries instead of the array, stretch after stretch, in a thread of its
    own, and `tell` hears what share was scanned. Neither changes a bit of what is found.
    """
    order: Literal["C", "F"] = "C" if tensor.flags.c_contiguous else "F"
    stored = tensor if order == "C" else tensor.T
    flat = stored.reshape(-1)

    def statistics(entries: NDArray[Any], start: int) -> _Part:
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = float(entries.min()), float(entries.max())
            if low >= 0 and math.isfinite(high):
                exact = entries.astype(np.float64, copy=False)
                squares, total = float(exact @ exact), float(exact.sum())
                return _Part(low, high, squares, squares, total, len(entries))
            return _with_special(entries, np.ones(len(entries), bool), start)

    def masked_statistics(seen: Booleans, box: Box) -> _Part:
        entries = stored[box]
        observed = np.broadcast_to(part_of(seen, box), entries.shape)
        starts = [cut.start or 0 for cut in box]
        with np.errstate(over="ignore", invalid="ignore"):
            return _with_special(entries.ravel(), observed.ravel(), int(np.ravel_multi_index(starts, stored.shape)))

    if mask is None:
        found = []
        for stretch, entries, chunks in _stretches(flat, read, whole=read is None and tell is None):
            first = stretch.start
            pieces = [(entries[chunk.start - first : chunk.stop - first], chunk.start) for chunk in chunks]
            found += threads.each(lambda piece: statistics(*piece), pieces)
            if tell is not None:
                tell(stretch.stop / flat.size)
    else:
        seen = mask if order == "C" else mask.T
        found = threads.each(lambda box: masked_statistics(seen, box), boxes(stored.shape))
    lows, highs, squares, positive, sums, observed = (np.array(column) for column in list(zip(*found, strict=True))[:6])
    some = observed > 0
    kinds = []
    for kind in range(3):
        places = [part.places[kind] for part in found]
        first = min((place for _, place in places if place >= 0), default=None)
        index = () if first is None else np.unravel_index(first, tensor.shape, order=order)
        kinds.append(Occurrence(sum(count for count, _ in places), tuple(int(i) for i in index)))
    return Scan(
        minimum=float(lows[some].min()) if some.any() else math.nan,
        maximum=float(highs[some].max()) if some.any() else math.nan,
        norm=_root(squares),
        positive_norm=_root(positive),
        positive_sum=math.fsum(sums) if np.isfinite(sums).all() else math.inf,
        observed=int(observed.sum()),
        nan=kinds[0],
        infinite=kinds[1],
        negative=kinds[2],
    )


def _stretches(flat: NDArray[Any], read: Read | None, whole: bool) -> Iterator[tuple[slice, NDArray[Any], list[slice]]]:
    """Every stretch, its entries and its chunks; with `read`, the next is read meanwhile."""
    chunks = list(slabs(flat.size, -(-flat.size // CHUNK)))
    count = len(chunks) if whole else STRETCH
    groups = [chunks[first : first + count] for first in range(0, len(chunks), count)]
    stretches = [slice(group[0].start, group[-1].stop) for group in groups]
    if read is None:
        yield from ((stretch, flat[stretch], group) for stretch, group in zip(stretches, groups, strict=True))
        return
    with ThreadPoolExecutor(1, "reader") as reader:
        coming = reader.submit(read, stretches[0])
        for turn, (stretch, group) in enumerate(zip(stretches, groups, strict=True), start=1):
            entries = coming.result()
            if turn < len(stretches):
                coming = reader.submit(read, stretches[turn])
            yield stretch, entries, group


def _with_special(entries: NDArray[Any], seen: Booleans, start: int) -> _Part:
    """The statistics of a chunk that has entries of a special kind, or is masked."""
    nan, infinite = np.isnan(entries) & seen, np.isinf(entries) & seen
    negative = (entries < 0) & seen & ~infinite
    places = tuple(
        (int(np.count_nonzero(kind)), start + int(kind.argmax()) if kind.any() else -1)
        for kind in (nan, infinite, negative)
    )
    exact = entries[seen & ~nan].astype(np.float64)
    if exact.size == 0:
        return _Part(math.nan, math.nan, 0.0, 0.0, 0.0, 0, places)
    positive = np.maximum(exact, 0.0)
    squares, above = float(exact @ exact), float(positive @ positive)
    return _Part(float(exact.min()), float(exact.max()), squares, above, float(positive.sum()), exact.size, places)


def _root(squares: NDArray[np.float64]) -> float:
    return math.sqrt(math.fsum(squares)) if np.isfinite(squares).all() else math.inf
