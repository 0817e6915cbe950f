"""How sparse, how many components, how close to the truth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from solvers.arrays import Array, Float64, hadamard


@dataclass(frozen=True)
class Sparsity:
    """Share of entries below the threshold, per mode: as they are (the paper's), and relative to the column's maximum.

    The first depends on how the scale of a component is spread over its modes; the second does not.
    """

    per_mode: tuple[float, ...]
    relative_per_mode: tuple[float, ...]


@dataclass(frozen=True)
class NonzeroComponents:
    """Components whose column reaches the threshold: in each mode, and in all modes at once."""

    per_mode: tuple[int, ...]
    all_modes: int


def sparsity(factors: Sequence[Array], threshold: float = 1e-3) -> Sparsity:
    bound = np.float64(threshold)  # a plain number would be rounded to the factor's precision, and may overflow there
    return Sparsity(
        per_mode=tuple(float((A < bound).mean()) for A in factors),
        relative_per_mode=tuple(float((_peak_one(A) < bound).mean()) for A in factors),
    )


def nonzero_components(factors: Sequence[Array], threshold: float = 1e-3) -> NonzeroComponents:
    alive = np.array([_is_alive(A, threshold) for A in factors])
    return NonzeroComponents(
        per_mode=tuple(int(count) for count in alive.sum(axis=1)), all_modes=int(alive.all(axis=0).sum())
    )


def weights(factors: Sequence[Array]) -> Float64:
    """The size of each component: the product of its columns' norms over the modes."""
    return hadamard([np.linalg.norm(A.astype(np.float64), axis=0) for A in factors])


def psnr(estimated: Array, true: Array, threshold: float = 1e-3) -> float:
    """Peak signal-to-noise ratio in decibels, the mean over the nonzero estimated columns; −inf if there is none.

    Columns are divided by their maximum; each estimated one is held against the true one of highest correlation, so
    several may share one.
    """
    found, reference = _peak_one(estimated[:, _is_alive(estimated, threshold)]), _peak_one(true)
    if found.shape[1] == 0:
        return -math.inf
    closest = _correlation(found, reference).argmax(axis=1)
    error = np.square(found - reference[:, closest]).sum(axis=0)
    with np.errstate(divide="ignore"):
        ratios: Float64 = 10 * np.log10(len(true) / error)
    return math.fsum(ratios) / len(ratios)


def factor_match_score(
    estimated: Sequence[Array],
    true: Sequence[Array],
    divisor: Literal["true", "larger", "smaller"] = "true",
    with_weights: bool = False,
) -> float:
    """How well components match one to one, from 0 to 1: cosines multiplied over the modes, under the best matching.

    The sum over matched pairs is divided by the true rank; where the ranks differ, the larger one also charges for
    spurious components, the smaller one does not charge for missing ones. `with_weights` multiplies each pair by
    1 − |w − ŵ| / max(w, ŵ).
    """
    cosines = hadamard([_unit(A).T @ _unit(B) for A, B in zip(estimated, true, strict=True)])
    if with_weights:
        w, v = weights(estimated)[:, None], weights(true)[None, :]
        cosines = cosines * (1 - np.abs(w - v) / np.maximum(np.maximum(w, v), np.finfo(float).tiny))
    # Half a second to load, and nobody else needs it.
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(cosines, maximize=True)
    ours, theirs = cosines.shape
    ranks: dict[str, int] = {"true": theirs, "larger": max(ours, theirs), "smaller": min(ours, theirs)}
    return float(cosines[rows, columns].sum()) / ranks[divisor]


def _is_alive(A: Array, threshold: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """A threshold of zero still leaves a zero column out."""
    top = A.max(axis=0)
    alive: np.ndarray[tuple[int], np.dtype[np.bool_]] = (top >= np.float64(threshold)) & (top > 0)
    return alive


def _peak_one(A: Array) -> Float64:
    top = A.max(axis=0)
    return A.astype(np.float64) / np.where(top > 0, top, 1.0)


def _unit(A: Array) -> Float64:
    A = A.astype(np.float64)
    norm = np.linalg.norm(A, axis=0)
    return A / np.where(norm > 0, norm, 1.0)


def _correlation(A: Float64, B: Float64) -> Float64:
    return _unit(A - A.mean(axis=0)).T @ _unit(B - B.mean(axis=0))
