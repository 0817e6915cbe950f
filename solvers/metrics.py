"""Measures of factors: sparsity, nonzero components, PSNR, factor match score."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.products import Array, Float64, hadamard

# A component whose weight is at most this share of the tensor's norm is dead.
DEAD_SHARE = 1e-6


@dataclass(frozen=True)
class Sparsity:
    """Fraction of entries below the threshold, per mode: absolute as in the paper, and relative to the column maximum.

    The first depends on how the scale of a component is spread over its modes; the second does not.
    """

    per_mode: tuple[float, ...]
    relative_per_mode: tuple[float, ...]


@dataclass(frozen=True)
class NonzeroComponents:
    """Number of components whose columns reach the threshold, in each mode and in all modes."""

    per_mode: tuple[int, ...]
    all_modes: int


def sparsity(factors: Sequence[Array], threshold: float = 1e-3) -> Sparsity:
    """Return the fraction of entries below the threshold."""
    bound = np.float64(threshold)  # a plain number would be rounded to the factor's precision, and may overflow there
    return Sparsity(
        per_mode=tuple(float((A < bound).mean()) for A in factors),
        relative_per_mode=tuple(float((_peak_one(A) < bound).mean()) for A in factors),
    )


def nonzero_components(factors: Sequence[Array], threshold: float = 1e-3) -> NonzeroComponents:
    """Count the components whose columns reach the threshold."""
    alive = np.array([_is_alive(A, threshold) for A in factors])
    return NonzeroComponents(
        per_mode=tuple(int(count) for count in alive.sum(axis=1)), all_modes=int(alive.all(axis=0).sum())
    )


def nonzero_components_by_weight(factors: Sequence[Array], least: float) -> NonzeroComponents:
    """Count the components whose weight is above `least`, in units of the tensor. All modes have the same count."""
    count = int((weights(factors) > least).sum())
    return NonzeroComponents(per_mode=(count,) * len(factors), all_modes=count)


def weights(factors: Sequence[Array]) -> Float64:
    """Return the size of each component: the product of the norms of its columns."""
    return hadamard([np.linalg.norm(A.astype(np.float64, copy=False), axis=0) for A in factors])


def psnr(estimated: Array, true: Array, threshold: float = 1e-3) -> float:
    """Return the mean peak signal-to-noise ratio of the nonzero estimated columns in decibels; −inf if all are zero.

    Columns are divided by their maximum; each estimated one is compared with the true one of highest correlation, so
    several may share one.
    """
    found, reference = _peak_one(estimated[:, _is_alive(estimated, threshold)]), _peak_one(true)
    if found.shape[1] == 0:
        return -math.inf
    correlations = unit_columns(found - found.mean(axis=0)).T @ unit_columns(reference - reference.mean(axis=0))
    closest = correlations.argmax(axis=1)
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
    """Return how well components match one to one, from 0 to 1.

    The score of a pair is the product of its cosines over the modes, and pairs are chosen to maximise their sum.

    The sum over matched pairs is divided by the true rank; where the ranks differ, the larger one also charges for
    spurious components, the smaller one does not charge for missing ones. `with_weights` multiplies each pair by
    1 − |w − ŵ| / max(w, ŵ).
    """
    cosines = hadamard(_cosines(estimated, true))
    if with_weights:
        w, v = weights(estimated)[:, None], weights(true)[None, :]
        cosines = cosines * (1 - np.abs(w - v) / np.maximum(np.maximum(w, v), np.finfo(float).tiny))
    ours, theirs = cosines.shape
    ranks: dict[str, int] = {"true": theirs, "larger": max(ours, theirs), "smaller": min(ours, theirs)}
    return float(cosines[best_matching(cosines)].sum()) / ranks[divisor]


def congruences(one: Sequence[Array], other: Sequence[Array]) -> Float64:
    """Return Tucker's congruence (the cosine) of every pair of components (columns) in every mode (rows).

    Components are paired one to one where the sum of their cosines, multiplied over the modes, is largest.
    """
    cosines = _cosines(one, other)
    rows, columns = best_matching(hadamard(cosines))
    return np.array([cosine[rows, columns] for cosine in cosines])


def lowest_congruence(one: Sequence[Array], other: Sequence[Array], least: float = 0.0) -> float:
    """Return the lowest product of cosines over the modes, of components that are paired as well as possible.

    Components of a weight up to `least` do not count, unless they are paired with one that does: that makes a 0. It is
    1 where no component counts.
    """
    living = [weights(factors) > least for factors in (one, other)]
    cosines = hadamard(_cosines(one, other)) * (living[0][:, None] & living[1])
    rows, columns = best_matching(cosines)
    counted = living[0][rows] | living[1][columns]
    return float(cosines[rows, columns][counted].min(initial=1.0))


@dataclass(frozen=True)
class MatchedComponents:
    """A component of one model and the one of another that is like it.

    Attributes
    ----------
    component, other : int or None
        The components, counted from 1; None where the other model has none left to match.
    congruence : float or None
        The product of their cosines over the modes.
    cosines : tuple of float
        The cosine in each mode.
    weight, other_weight : float or None
        Their sizes, in units of the tensor.
    """

    component: int | None
    other: int | None
    congruence: float | None
    cosines: tuple[float, ...]
    weight: float | None
    other_weight: float | None


def match_components(one: Sequence[Array], other: Sequence[Array]) -> tuple[MatchedComponents, ...]:
    """Match the components of two models, the largest of the first model first; those that are zero are left out.

    Parameters
    ----------
    one, other : sequence of array_like
        The factors of both models, which have the same lengths.

    Returns
    -------
    tuple of MatchedComponents
        The pairs whose cosines, multiplied over the modes, have the largest sum; then what is left of the second model.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse_ncp.solvers.metrics import match_components
    >>> factors = [np.eye(4, 2) for _ in range(3)]
    >>> [pair.other for pair in match_components(factors, [A[:, ::-1] for A in factors])]
    [2, 1]
    """
    sizes, others = weights(one), weights(other)
    mine, theirs = (np.flatnonzero(w > DEAD_SHARE * w.max(initial=0.0)) for w in (sizes, others))
    cosines = _cosines([A[:, mine] for A in one], [A[:, theirs] for A in other])
    product = hadamard(cosines)
    rows, columns = best_matching(product)
    partner = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    found = []
    for row in np.argsort(-sizes[mine], kind="stable").tolist():
        column = partner.get(row)
        place = None if column is None else int(theirs[column])
        found.append(
            MatchedComponents(
                component=int(mine[row]) + 1,
                other=None if place is None else place + 1,
                congruence=None if column is None else float(product[row, column]),
                cosines=() if column is None else tuple(float(cosine[row, column]) for cosine in cosines),
                weight=float(sizes[mine[row]]),
                other_weight=None if place is None else float(others[place]),
            )
        )
    left = [int(theirs[column]) for column in range(len(theirs)) if column not in set(columns.tolist())]
    return (*found, *(MatchedComponents(None, place + 1, None, (), None, float(others[place])) for place in left))


def _cosines(one: Sequence[Array], other: Sequence[Array]) -> list[Float64]:
    return [unit_columns(A).T @ unit_columns(B) for A, B in zip(one, other, strict=True)]


def best_matching(score: Float64) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Match rows with columns one to one so that the sum of their scores is largest."""
    # Half a second to load, and only needed here.
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(score, maximize=True)
    return rows, columns


def _is_alive(A: Array, threshold: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which columns reach the threshold; a zero column never does, even if the threshold is zero."""
    top = A.max(axis=0)
    alive: np.ndarray[tuple[int], np.dtype[np.bool_]] = (top >= np.float64(threshold)) & (top > 0)
    return alive


def _peak_one(A: Array) -> Float64:
    top = A.max(axis=0)
    return A.astype(np.float64) / np.where(top > 0, top, 1.0)


def unit_columns(A: Array) -> Float64:
    """Divide the columns by their norms; a zero column stays zero."""
    A = A.astype(np.float64)
    norm = np.linalg.norm(A, axis=0)
    return A / np.where(norm > 0, norm, 1.0)
