"""Stability of components: how much of a model is found again when its samples are resampled or halved.

This module draws the samples and compares the fits; `solvers.bcd.resamples` makes them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.metrics import best_matching, unit_columns
from sparse_ncp.solvers.tensor.products import Float64, hadamard
from sparse_ncp.solvers.tensor.validation import check_mode

# Random splits of the samples into two halves, and the fewest samples that can be halved.
SPLITS, FEWEST_HALVED = 3, 4
# The fewest samples that can be resampled; a resample has at least this share of them, some more than once.
FEWEST_SAMPLES, LEAST_DRAWN = 3, 0.5
# Replicability is this quantile of the congruence over the resamples; a band reaches from one quantile to the other.
REPLICABLE, BAND = 0.1, (0.05, 0.95)
# Keeps the random numbers apart from those of the starts.
SPAWN_KEY = 29


@dataclass(frozen=True, eq=False)
class Band:
    """Quantiles of 5 and 95 % of every loading of a mode, in the scale of the factor; NaN where a fit never has it."""

    lower: Float64
    upper: Float64


@dataclass(frozen=True, eq=False)
class Stability:
    """Stability of the components of a model.

    Attributes
    ----------
    samples_mode : int
        The mode whose indices are the samples, counted from 1.
    resamples : int
        Number of bootstrap resamples, drawn with replacement.
    replicability : tuple of float or None
        For each component, the congruence with its match that 90 % of the resamples reach: the product of the cosines
        over the modes that are not samples. 1 at best; None for a component that is zero.
    split_half : tuple of float or None, or None
        For each component, the lowest congruence between two halves of the samples, over three random splits; None
        with fewer than four samples.
    bands : tuple of Band or None
        For each mode, the range of every loading over the resamples; None for the mode of the samples.

    Examples
    --------
    >>> from sparse_ncp import Settings, solve, synthetic
    >>> X = synthetic.planted((20, 15, 10), rank=3, seed=1).tensor
    >>> stability = solve(X, Settings(rank=3, method="hals", stability=True, resamples=5)).stability
    >>> len(stability.replicability), stability.bands[0], stability.bands[1].lower.shape
    (3, None, (15, 3))
    """

    samples_mode: int
    resamples: int
    replicability: tuple[float | None, ...]
    split_half: tuple[float | None, ...] | None
    bands: tuple[Band | None, ...]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything as named arrays: `replicability`, `split_half`, and `lower_A2`, `upper_A2` of mode 2 …"""
        arrays: dict[str, NDArray[Any]] = {
            "samples_mode": np.array(self.samples_mode),
            "resamples": np.array(self.resamples),
            "replicability": np.array(self.replicability, np.float64),
        }
        if self.split_half is not None:
            arrays["split_half"] = np.array(self.split_half, np.float64)
        for mode, band in enumerate(self.bands, start=1):
            if band is not None:
                arrays |= {f"lower_A{mode}": band.lower, f"upper_A{mode}": band.upper}
        return arrays

    def with_rows(self, shape: Sequence[int], kept: Sequence[NDArray[np.intp]]) -> "Stability":
        """Return the same for a tensor of this shape, of which only the kept indices were fitted: others are NaN."""
        bands: list[Band | None] = []
        for band, length, own in zip(self.bands, shape, kept, strict=True):
            if band is None:
                bands.append(None)
                continue
            whole = [np.full((length, bound.shape[1]), np.nan) for bound in (band.lower, band.upper)]
            for bound, known in zip(whole, (band.lower, band.upper), strict=True):
                bound[own] = known
            bands.append(Band(*whole))
        return replace(self, bands=tuple(bands))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Stability":
        samples_mode = int(arrays["samples_mode"])
        others = sum(name.startswith("lower_") for name in arrays)
        halves = arrays.get("split_half")
        return cls(
            samples_mode,
            int(arrays["resamples"]),
            _numbers(arrays["replicability"]),
            None if halves is None else _numbers(halves),
            tuple(
                None if mode == samples_mode else Band(arrays[f"lower_A{mode}"], arrays[f"upper_A{mode}"])
                for mode in range(1, others + 2)
            ),
        )


def check_stability(samples_mode: int, shape: Sequence[int], fixed: Sequence[int] = ()) -> None:
    """Raise InvalidInput if the stability of components cannot be assessed; `fixed` are modes, counted from 1."""
    check_mode(samples_mode, len(shape))
    samples = shape[samples_mode - 1]
    if samples < FEWEST_SAMPLES:
        problem = f"resamples the samples, and mode {samples_mode} has {samples} of them"
        remedy = f"give samples_mode, for a mode of {FEWEST_SAMPLES} or more, or leave stability out"
        raise InvalidInput("stability", problem, remedy)
    if all(mode == samples_mode or mode in fixed for mode in range(1, len(shape) + 1)):
        problem = f"is of the loadings in the modes beside the samples (mode {samples_mode}), and all of them are fixed"
        raise InvalidInput("stability", problem, "leave it out, or give samples_mode for another mode")


def resample_weights(samples: int, number: int, seed: int) -> Float64:
    """Draw samples with replacement: in each row, how many times every sample was drawn."""
    rows = []
    for place in range(number):
        random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(SPAWN_KEY, 0, place)))
        drawn = np.zeros(samples, np.intp)
        while np.count_nonzero(drawn) < LEAST_DRAWN * samples:
            drawn = np.bincount(random.integers(0, samples, samples), minlength=samples)
        rows.append(drawn)
    return np.array(rows, np.float64).reshape(number, samples)


def half_weights(samples: int, seed: int) -> Float64:
    """Split the samples at random: two rows for each split, with the weights that make a half as heavy as the whole."""
    rows = []
    for split in range(SPLITS if samples >= FEWEST_HALVED else 0):
        random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(SPAWN_KEY, 1, split)))
        order = random.permutation(samples)
        for half in (order[: samples // 2], order[samples // 2 :]):
            rows.append(np.zeros(samples))
            rows[-1][half] = samples / len(half)
    return np.array(rows, np.float64).reshape(-1, samples)


def aligned_with(reference: Sequence[Float64], found: Sequence[Float64]) -> tuple[list[Float64], NDArray[np.float64]]:
    """Return the loadings of a fit in the order and scale of a reference, and the congruence of every component.

    Rows of NaN were not determined by the samples of the fit, and do not count. A component that the fit has lost is
    NaN, with a congruence of 0.
    """
    known = [~np.isnan(B[:, 0]) for B in found]
    ours = [np.where(rows[:, None], A, 0) for A, rows in zip(reference, known, strict=True)]
    theirs = [np.where(rows[:, None], B, 0) for B, rows in zip(found, known, strict=True)]
    cosines = hadamard([unit_columns(A).T @ unit_columns(B) for A, B in zip(ours, theirs, strict=True)])
    _, order = best_matching(cosines)
    congruence: Float64 = cosines[np.arange(len(order)), order]
    lost = ~np.all([B[:, order].any(axis=0) for B in theirs], axis=0)
    aligned = []
    for A, B, rows in zip(ours, theirs, known, strict=True):
        norms = np.linalg.norm(A, axis=0), np.linalg.norm(B[:, order], axis=0)
        scaled = B[:, order] * np.divide(*norms, out=np.zeros(len(order)), where=norms[1] > 0)
        scaled[~rows] = np.nan
        scaled[:, lost] = np.nan
        aligned.append(scaled)
    return aligned, np.where(lost, 0.0, congruence)


def summarise(
    samples_mode: int,
    reference: Sequence[Float64],
    resampled: Sequence[Sequence[Float64]],
    halves: Sequence[Sequence[Float64]],
) -> Stability:
    """Compare fits to resamples, and to halves two by two, with the model. All are without the mode of the samples."""
    living = np.all([A.any(axis=0) for A in reference], axis=0)
    aligned = [aligned_with(reference, found) for found in resampled]
    replicability = np.quantile([congruence for _, congruence in aligned], REPLICABLE, axis=0)
    bands: list[Band | None] = []
    for place, A in enumerate(reference):
        lower, upper = np.empty(A.shape), np.empty(A.shape)
        for r in range(A.shape[1]):
            loadings = np.array([loading[place][:, r] for loading, _ in aligned])
            lower[:, r], upper[:, r] = _quantiles(loadings)
        bands.append(Band(lower, upper))
    bands.insert(samples_mode - 1, None)
    matched = [aligned_with(reference, found)[0] for found in halves]
    splits = [_congruence(one, other) for one, other in zip(matched[::2], matched[1::2], strict=True)]
    return Stability(
        samples_mode=samples_mode,
        resamples=len(resampled),
        replicability=_numbers(np.where(living, replicability, np.nan)),
        split_half=_numbers(np.where(living, np.min(splits, axis=0), np.nan)) if splits else None,
        bands=tuple(bands),
    )


def _quantiles(loadings: Float64) -> Float64:
    """Return the quantiles of a band over the rows; NaN do not count, and a column of them alone stays NaN."""
    missing = np.isnan(loadings)
    if not missing.any():
        return np.quantile(loadings, BAND, axis=0)
    found = np.full((len(BAND), loadings.shape[1]), np.nan)
    some = ~missing.all(axis=0)
    if some.any():
        found[:, some] = np.nanquantile(loadings[:, some], BAND, axis=0)
    return found


def _congruence(one: Sequence[Float64], other: Sequence[Float64]) -> Float64:
    """Return the congruence of components in the same order, over the rows that both have; 0 for a lost one."""
    cosines = []
    for A, B in zip(one, other, strict=True):
        known = ~(np.isnan(A) | np.isnan(B))
        ours, theirs = unit_columns(np.where(known, A, 0)), unit_columns(np.where(known, B, 0))
        cosines.append(np.einsum("ir,ir->r", ours, theirs))
    return hadamard(cosines)


def _numbers(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else value for value in values.tolist())
