"""Scan all entries of a tensor once: their range, their norm, and the entries that need a decision."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

# Entries processed at a time: a chunk stays in the L2 cache for all passes over it.
CHUNK = 1 << 15
# Chunks read at a time: one run is read while the previous one is scanned.
CHUNKS_PER_RUN = 16

Booleans: TypeAlias = NDArray[np.bool_]
Region: TypeAlias = tuple[slice, ...]
# Yields the entries of adjacent slices in groups: the numbers of the slices, and the entries of all of them.
Runs: TypeAlias = Callable[[NDArray[Any], Sequence[slice]], Iterator[tuple[range, NDArray[Any]]]]
# Reads a slice of the entries, in memory order; the array is valid until the next call but one.
Read: TypeAlias = Callable[[slice], NDArray[Any]]
OnProgress: TypeAlias = Callable[[float], None]


@dataclass(frozen=True)
class Occurrence:
    """Number of entries of some kind, and the index of the first one in memory order (from 0), or ()."""

    count: int
    first: tuple[int, ...]

    def counted(self, adjective: str) -> str:
        """Return the count in words, such as "2 entries are negative"."""
        return f"1 entry is {adjective}" if self.count == 1 else f"{self.count} entries are {adjective}"


@dataclass(frozen=True)
class Scan:
    """Result of a scan. All fields except `nan` refer to the observed entries, which are neither NaN nor masked.

    If no entry is observed, minimum and maximum are NaN. The positive norm and sum count negative entries as zero.
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
    """Statistics of a chunk; `places` has a count and the first position in memory order, or −1, for each kind."""

    low: float
    high: float
    squares: float
    positive_squares: float
    positive_sum: float
    observed: int
    places: tuple[tuple[int, int], ...] = ((0, -1),) * 3


def split_into_regions(shape: Sequence[int], most: int = CHUNK) -> Iterator[Region]:
    """Split an array in C order into contiguous regions of at most `most` entries each."""
    axis = next(axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= most)
    rows = max(1, most // math.prod(shape[axis + 1 :]))
    leading = product(*([slice(i, i + 1) for i in range(length)] for length in shape[:axis]))
    whole = (slice(None),) * (len(shape) - axis - 1)
    for before, part in product(leading, split_evenly(shape[axis], -(-shape[axis] // rows))):
        yield (*before, part, *whole)


def one_run(flat: NDArray[Any], cuts: Sequence[slice]) -> Iterator[tuple[range, NDArray[Any]]]:
    """Yield all slices as one group of entries in memory."""
    yield range(len(cuts)), flat[cuts[0].start : cuts[-1].stop]


def regions_with_entries(
    stored: NDArray[Any], runs: Runs, most: int = CHUNK
) -> Iterator[list[tuple[Region, NDArray[Any]]]]:
    """Yield the regions of `split_into_regions` with their entries, in groups."""
    cuts = list(split_into_regions(stored.shape, most))
    shapes = [stored[cut].shape for cut in cuts]
    edges = np.cumsum([0, *(math.prod(shape) for shape in shapes)]).tolist()
    for some, entries in runs(stored.reshape(-1), [slice(*pair) for pair in pairwise(edges)]):
        first = edges[some[0]]
        yield [(cuts[n], entries[edges[n] - first : edges[n + 1] - first].reshape(shapes[n])) for n in some]


def mask_region(mask: Booleans, region: Region) -> Booleans:
    """Return the part of a mask for a region; modes in which the mask has length 1 are not split."""
    return mask[tuple(slice(None) if length == 1 else cut for length, cut in zip(mask.shape, region, strict=True))]


def scan(
    tensor: NDArray[Any],
    threads: Threads,
    mask: Booleans | None = None,
    read: Read | None = None,
    on_progress: OnProgress | None = None,
    runs: Runs = one_run,
) -> Scan:
    """Scan a contiguous tensor in chunks, without copying it; entries where `mask` is false are not observed.

    `runs` yields the entries. Without a mask, `read` can be used instead: it is called for one run after another in a
    separate thread, and `on_progress` is called with the fraction done. None of them changes any bit of the result.
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
        for run, entries, chunks in _runs(flat, read, runs):
            first = run.start
            pieces = [(entries[chunk.start - first : chunk.stop - first], chunk.start) for chunk in chunks]
            found += threads.each(lambda piece: statistics(*piece), pieces)
            if on_progress is not None:
                on_progress(run.stop / flat.size)
    else:
        stored_mask = mask if order == "C" else mask.T
        for group in regions_with_entries(stored, runs):
            found += threads.each(lambda item: masked_statistics(stored_mask, *item), group)
    lows, highs, *amounts, observed = (np.array(column) for column in list(zip(*found, strict=True))[:6])
    squares, positive_squares, positive_sum = (
        math.fsum(amount) if np.isfinite(amount).all() else math.inf for amount in amounts
    )
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
        norm=math.sqrt(squares),
        positive_norm=math.sqrt(positive_squares),
        positive_sum=positive_sum,
        observed=int(observed.sum()),
        nan=kinds[0],
        infinite=kinds[1],
        negative=kinds[2],
    )


def _runs(flat: NDArray[Any], read: Read | None, runs: Runs) -> Iterator[tuple[slice, NDArray[Any], list[slice]]]:
    """Yield each run with its entries and chunks; `read` fetches the next run in the meantime."""
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
    """Return the statistics of a chunk with special or masked entries."""
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
