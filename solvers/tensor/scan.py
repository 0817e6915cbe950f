"""One pass over all entries of a tensor: their range and norm, and those that ask for a decision."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

# Entries read at a time: small enough to stay in the second-level cache for all passes over a chunk.
CHUNK = 1 << 15
# Chunks of a stretch: one stretch is read while the one before is scanned.
CHUNKS_PER_RUN = 16

Booleans: TypeAlias = NDArray[np.bool_]
Region: TypeAlias = tuple[slice, ...]
# Gives the entries of cuts that lie side by side, in groups: which of the cuts, and the entries of all of these.
Runs: TypeAlias = Callable[[NDArray[Any], Sequence[slice]], Iterator[tuple[range, NDArray[Any]]]]
# Gives a stretch of the entries, in memory order; it holds until the next but one is asked for.
Read: TypeAlias = Callable[[slice], NDArray[Any]]
OnProgress: TypeAlias = Callable[[float], None]


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


def split_into_regions(shape: Sequence[int], most: int = CHUNK) -> Iterator[Region]:
    """Cut an array in C order into regions that are contiguous in memory, of at most `most` entries each."""
    axis = next(axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= most)
    rows = max(1, most // math.prod(shape[axis + 1 :]))
    leading = product(*([slice(i, i + 1) for i in range(length)] for length in shape[:axis]))
    whole = (slice(None),) * (len(shape) - axis - 1)
    for before, part in product(leading, split_evenly(shape[axis], -(-shape[axis] // rows))):
        yield (*before, part, *whole)


def one_run(flat: NDArray[Any], cuts: Sequence[slice]) -> Iterator[tuple[range, NDArray[Any]]]:
    """All entries as they lie in memory."""
    yield range(len(cuts)), flat[cuts[0].start : cuts[-1].stop]


def regions_with_entries(
    stored: NDArray[Any], runs: Runs, most: int = CHUNK
) -> Iterator[list[tuple[Region, NDArray[Any]]]]:
    """The same regions and their entries, in groups."""
    cuts = list(split_into_regions(stored.shape, most))
    shapes = [stored[cut].shape for cut in cuts]
    edges = np.cumsum([0, *(math.prod(shape) for shape in shapes)]).tolist()
    for some, entries in runs(stored.reshape(-1), [slice(*pair) for pair in pairwise(edges)]):
        first = edges[some[0]]
        yield [(cuts[n], entries[edges[n] - first : edges[n + 1] - first].reshape(shapes[n])) for n in some]


def mask_region(mask: Booleans, region: Region) -> Booleans:
    """The region of a mask whose modes have the tensor's length or 1."""
    return mask[tuple(slice(None) if length == 1 else cut for length, cut in zip(mask.shape, region, strict=True))]


def scan(
    tensor: NDArray[Any],
    threads: Threads,
    mask: Booleans | None = None,
    read: Read | None = None,
    on_progress: OnProgress | None = None,
    runs: Runs = one_run,
) -> Scan:
    """Scan a contiguous tensor, chunk by chunk and without copying it; where `mask` is false, nothing is observed.

    `runs` gives its entries. Where there is no mask, `read` may give them instead, stretch after stretch, in a
    thread of its own, and `on_progress` is called with the fraction done. None of them changes a bit of what is found.
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

    def masked_statistics(mask: Booleans, region: Region, entries: NDArray[Any]) -> _Part:
        observed = np.broadcast_to(mask_region(mask, region), entries.shape)
        starts = [cut.start or 0 for cut in region]
        with np.errstate(over="ignore", invalid="ignore"):
            return _with_special(entries.ravel(), observed.ravel(), int(np.ravel_multi_index(starts, stored.shape)))

    found: list[_Part] = []
    if mask is None:
        for stretch, entries, chunks in _runs(flat, read, runs):
            first = stretch.start
            pieces = [(entries[chunk.start - first : chunk.stop - first], chunk.start) for chunk in chunks]
            found += threads.each(lambda piece: statistics(*piece), pieces)
            if on_progress is not None:
                on_progress(stretch.stop / flat.size)
    else:
        stored_mask = mask if order == "C" else mask.T
        for group in regions_with_entries(stored, runs):
            found += threads.each(lambda item: masked_statistics(stored_mask, *item), group)
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


def _runs(flat: NDArray[Any], read: Read | None, runs: Runs) -> Iterator[tuple[slice, NDArray[Any], list[slice]]]:
    """Every stretch, its entries and its chunks; with `read`, the next is read meanwhile."""
    chunks = list(split_evenly(flat.size, -(-flat.size // CHUNK)))
    if read is None:
        for some, entries in runs(flat, chunks):
            group = chunks[some.start : some.stop]
            yield slice(group[0].start, group[-1].stop), entries, group
        return
    groups = [chunks[first : first + CHUNKS_PER_RUN] for first in range(0, len(chunks), CHUNKS_PER_RUN)]
    wholes = [slice(group[0].start, group[-1].stop) for group in groups]
    with ThreadPoolExecutor(1, "reader") as reader:
        coming = reader.submit(read, wholes[0])
        for turn, (whole, group) in enumerate(zip(wholes, groups, strict=True), start=1):
            entries = coming.result()
            if turn < len(wholes):
                coming = reader.submit(read, wholes[turn])
            yield whole, entries, group


def _with_special(entries: NDArray[Any], observed: Booleans, start: int) -> _Part:
    """The statistics of a chunk that has entries of a special kind, or is masked."""
    nan, infinite = np.isnan(entries) & observed, np.isinf(entries) & observed
    negative = (entries < 0) & observed & ~infinite
    places = tuple(
        (int(np.count_nonzero(kind)), start + int(kind.argmax()) if kind.any() else -1)
        for kind in (nan, infinite, negative)
    )
    exact = entries[observed & ~nan].astype(np.float64)
    if exact.size == 0:
        return _Part(math.nan, math.nan, 0.0, 0.0, 0.0, 0, places)
    positive = np.maximum(exact, 0.0)
    squares, above = float(exact @ exact), float(positive @ positive)
    return _Part(float(exact.min()), float(exact.max()), squares, above, float(positive.sum()), exact.size, places)


def _root(squares: NDArray[np.float64]) -> float:
    return math.sqrt(math.fsum(squares)) if np.isfinite(squares).all() else math.inf
