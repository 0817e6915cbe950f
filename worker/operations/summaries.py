"""Summaries of tensors: histogram, mean along each mode and counts, computed in one pass over a memory map."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sparse_ncp.solvers.runtime import Float64, split_into_regions
from sparse_ncp.worker.owner_limits import FrozenModel

BINS = 64
# Longest profile; longer modes are averaged over groups of neighbouring indices.
MAX_PROFILE_LENGTH = 512


class Histogram(FrozenModel):
    """Number of observed entries in bins of equal width from `min` to `max`; one bin if these are equal."""

    min: float
    max: float
    counts: tuple[int, ...]


class Profile(FrozenModel):
    """Mean of the entries at each index of a mode."""

    mode: int = Field(description="counted from 1")
    step: int = Field(description="number of neighbouring indices that share a value; the last value may cover fewer")
    values: tuple[float | None, ...] = Field(description="mean of the observed entries; null if there are none")


class Summary(FrozenModel):
    """Summary of the entries of a tensor. Missing entries (NaN) only count as missing."""

    observed: int
    missing: int
    negative: int
    zero: int
    mean: float
    histogram: Histogram
    profiles: tuple[Profile, ...]


class ProfileSums:
    """Sums and counts of observed entries, by groups of neighbouring indices along each axis."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.steps = [-(-length // MAX_PROFILE_LENGTH) for length in shape]
        groups = [-(-length // step) for length, step in zip(shape, self.steps, strict=True)]
        self.sums = [np.zeros(count) for count in groups]
        self.counts = [np.zeros(count) for count in groups]

    def add(self, box: tuple[slice, ...], entries: Float64, observed_mask: NDArray[np.bool_] | None) -> None:
        """Add a box of entries, which are zero where `observed_mask` is false; None means that all are observed."""
        for axis, (cut, length) in enumerate(zip(box, entries.shape, strict=True)):
            others = tuple(other for other in range(entries.ndim) if other != axis)
            group = np.arange(cut.start or 0, (cut.start or 0) + length) // self.steps[axis]
            first, last = int(group[0]), int(group[-1]) + 1
            observed = (
                np.full(length, entries.size // length) if observed_mask is None else observed_mask.sum(axis=others)
            )
            for totals, parts in ((self.sums, entries.sum(axis=others)), (self.counts, observed)):
                totals[axis][first:last] += np.bincount(group - first, weights=parts)

    def of(self, axis: int, mode: int) -> Profile:
        """Return the profile along an axis."""
        pairs = zip(self.sums[axis].tolist(), self.counts[axis].tolist(), strict=True)
        means = tuple(total / count if count else None for total, count in pairs)
        return Profile(mode=mode, step=self.steps[axis], values=means)


def summarize(tensor: NDArray[Any], minimum: float, maximum: float) -> Summary:
    """Summarise a contiguous tensor whose observed entries lie in this range, in little memory."""
    is_transposed = not tensor.flags.c_contiguous
    stored = tensor.T if is_transposed else tensor
    profiles, width = ProfileSums(stored.shape), maximum - minimum
    counts = np.zeros(BINS if width else 1, np.int64)
    observed = negative = zero = 0
    sums = []
    for box in split_into_regions(stored.shape):
        entries = np.asarray(stored[box], np.float64)
        missing = np.isnan(entries)
        observed_mask = ~missing if missing.any() else None
        values = entries.ravel() if observed_mask is None else entries[observed_mask]
        bins = np.clip((values - minimum) / (width or 1.0) * len(counts), 0, len(counts) - 1).astype(np.intp)
        counts += np.bincount(bins, minlength=len(counts))
        observed += values.size
        negative += int(np.count_nonzero(values < 0))
        zero += int(np.count_nonzero(values == 0))
        sums.append(float(values.sum()))
        profiles.add(box, entries if observed_mask is None else np.where(observed_mask, entries, 0.0), observed_mask)
    axes = range(tensor.ndim)
    return Summary(
        observed=observed,
        missing=tensor.size - observed,
        negative=negative,
        zero=zero,
        mean=math.fsum(sums) / observed,
        histogram=Histogram(min=minimum, max=maximum, counts=tuple(counts.tolist())),
        profiles=tuple(profiles.of(axes[-1 - axis] if is_transposed else axis, axis + 1) for axis in axes),
    )
