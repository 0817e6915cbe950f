"""Find the pattern of missing entries: the modes along which it is constant, and the exceptions.

A scatter band is missing in every sample, a dead channel at every time. Along such modes the mask has length 1, and
everything derived from it is small. A few scattered entries are kept in a list.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.gemm.out_of_core import contiguous_runs
from sparse_ncp.solvers.tensor.missing.masked import Mask
from sparse_ncp.solvers.tensor.protocol import Modes
from sparse_ncp.solvers.tensor.scan import Booleans, Region, mask_region, regions_with_entries
from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

# Largest fraction of entries in the list, which takes eight bytes per entry and mode.
LONGEST_LIST = 1 / 32
# Nanoseconds per entry of the mask's tree and of the list, plus those per pair of components; only ratios matter.
TREE, TREE_PAIR, LIST, LIST_PAIR = 1.0, 0.1, 40.0, 0.2
GROUPS = 16


@dataclass(frozen=True)
class Pattern:
    """Pattern of missing entries: `missing` has length 1 along shared modes, exceptions are `listed`.

    Modes are those of the tensor, from 0. `missing` is None if all missing entries are scattered. `listed` is
    entries × modes. `counts` has the number of observed entries for each index of each mode.
    """

    counts: tuple[NDArray[np.int64], ...]
    constant: Modes  # along which the mask is constant without exception
    shared: Modes  # along which `missing` is constant
    missing: Booleans | None
    listed: NDArray[np.int32]


def find_pattern(mask: Mask, modes: Modes, rank: int, threads: Threads) -> Pattern:
    """Return the pattern whose Grams of this rank cost least; `modes` lists the modes of the mask's axes."""
    shape = mask.stored.shape
    along, counts = _survey(mask, threads)
    total = math.prod(shape) - int(counts[0].sum())
    constant = [axis for axis, length in enumerate(shape) if int(along[axis].sum()) * length == total]
    best: tuple[Booleans | None, Modes] = None, ()
    lowest = math.prod(shape) * (TREE + TREE_PAIR * rank**2)
    for pattern, axes in _shared_patterns(along):
        if len(axes) == len(shape) - 1:
            continue  # whole indices, which a tensor of two modes or more counts as well
        covered = int(pattern.sum()) * math.prod(shape[axis] for axis in axes)
        tree = pattern.size * (TREE + TREE_PAIR * rank**2) if covered else 0.0
        cost = tree + (total - covered) * len(shape) * (LIST + LIST_PAIR * rank**2)
        if total - covered <= LONGEST_LIST * math.prod(shape) and cost < lowest:
            best, lowest = (pattern, axes), cost
    missing, shared = best
    listed = [np.empty((0, len(shape)), np.int32)]  # the missing entries that are not in the shared pattern
    if missing is not None:
        for region, entries in chain.from_iterable(regions_with_entries(mask.stored, contiguous_runs)):
            cut = mask_region(missing, region)
            places = np.argwhere(mask.missing(region, entries) & ~cut)
            if len(places):
                listed.append((places + [part.start or 0 for part in region]).astype(np.int32))
    in_order = np.argsort(modes).tolist()
    return Pattern(
        counts=tuple(counts[axis] for axis in in_order),
        constant=tuple(sorted(modes[axis] for axis in constant)),
        shared=tuple(sorted(modes[axis] for axis in shared)),
        missing=None if missing is None else np.ascontiguousarray(missing.transpose(in_order)),
        listed=np.ascontiguousarray(np.concatenate(listed)[:, in_order]),
    )


def _survey(mask: Mask, threads: Threads) -> tuple[list[Booleans], list[NDArray[np.int64]]]:
    """Return, for each axis, where entries are missing all along it, and the number of observed ones by index."""
    shape = mask.stored.shape
    along = [np.ones((*shape[:axis], 1, *shape[axis + 1 :]), bool) for axis in range(len(shape))]

    def look(group: Sequence[tuple[Region, NDArray[Any]]]) -> list[NDArray[np.int64]]:
        counts = [np.zeros(length, np.int64) for length in shape]
        for region, entries in group:
            missing = mask.missing(region, entries)
            for axis, cut in enumerate(region):
                others = tuple(other for other in range(len(shape)) if other != axis)
                counts[axis][cut] += missing.size // missing.shape[axis] - missing.sum(axis=others)
                part = along[axis][(*region[:axis], slice(None), *region[axis + 1 :])]
                # Entries change from true to false only, so threads may write here in any order.
                np.copyto(part, False, where=~missing.all(axis=axis, keepdims=True))
        return counts

    total = [np.zeros(length, np.int64) for length in shape]
    for group in regions_with_entries(mask.stored, contiguous_runs):
        for part in threads.each(look, [group[some] for some in split_evenly(len(group), GROUPS)]):
            for axis, counts in enumerate(part):
                total[axis] += counts
    return along, total


def _shared_patterns(along: Sequence[Booleans]) -> Iterator[tuple[Booleans, Modes]]:
    """Yield where entries are missing all along a set of axes, for every set for which there are any."""
    everything = tuple(range(len(along)))
    yield np.zeros((1,) * len(along), bool), everything

    def further(missing: Booleans, axes: Modes) -> Iterator[tuple[Booleans, Modes]]:
        if missing.any():
            yield missing, axes
            for axis in range(axes[-1] + 1, len(along)):
                yield from further(np.asarray(missing.all(axis=axis, keepdims=True)), (*axes, axis))

    for axis, missing in enumerate(along):
        yield from further(missing, (axis,))
