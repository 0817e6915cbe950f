"""The scale of the factors: balance each component over the modes, and stop before a product overflows.

Scaling the columns of component r by s₁ … s_N with ∏ sₙ = 1 leaves the model as it is. The penalty is smallest where
p s² + q s is the same in every mode, for p = α ‖a‖² and q = β ‖a‖₁: there the scales are balanced. So the objective
never rises.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparse_ncp.solvers.bcd.problem import Problem
from sparse_ncp.solvers.block import Memory
from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.metrics import weights
from sparse_ncp.solvers.tensor.products import Array, Float64

# A column of a smaller squared norm is as good as zero, and its products underflow.
VANISHED = 1e-100
# Of a component's norms, multiplied over the modes: their squares, times the largest tensor that is not refused, stay
# below the largest number of the precision.
LARGEST_PRODUCT = {np.dtype(np.float64): 1e90, np.dtype(np.float32): 1e25}
# A component of a smaller share of the largest one is far below rounding. Where no penalty makes it zero, its columns
# would go on as quotients of ever smaller numbers.
FAINT = 1e-20


def best_scales(problem: Problem, factors: Sequence[Array]) -> Float64:
    """Return the scales with the smallest penalty; their product over the free modes is 1 for every component."""
    scales = np.ones((len(factors), factors[0].shape[1]))
    alpha, beta = (np.array([weights[mode] for mode in problem.free]) for weights in (problem.alpha, problem.beta))
    if not (alpha + beta).all():  # all scale would move to the mode without a penalty
        return scales
    from sparse_ncp.solvers.kernels.elementwise import balance, squares_and_sums  # numba, see methods/hals.py

    if scales.shape[1] > 1:
        squares, sums = np.stack([squares_and_sums(np.ascontiguousarray(A)) for A in factors], axis=1)
    else:  # numpy sums a single column pairwise
        exact = [A.astype(np.float64, copy=False) for A in factors]
        squares, sums = np.array([[np.square(A).sum(axis=0) for A in exact], [A.sum(axis=0) for A in exact]])
    alive = (squares > VANISHED).all(axis=0)
    if not problem.squared or not beta.any():  # without β both penalties are the same
        scales[:, alive] = balance(alpha[:, None] * squares[:, alive], beta[:, None] * sums[:, alive])
        return scales
    exact = [A.astype(np.float64, copy=False) for A in factors]
    rows = [A.sum(axis=1) for A in exact]
    for r in np.flatnonzero(alive):
        others = np.array([A[:, r] @ (row - A[:, r]) for A, row in zip(exact, rows, strict=True)])
        scale = balance(((alpha + beta) * squares[:, r])[:, None], (beta * others.clip(0))[:, None])[:, 0]
        rows = [row + (s - 1) * A[:, r] for A, row, s in zip(exact, rows, scale, strict=True)]
        scales[:, r] = scale
    return scales


def scales_after_sweep(problem: Problem, factors: Sequence[Array], sizes: Sequence[Float64]) -> Float64 | None:
    """Return the scales to apply after a sweep, N × R, or None to leave the factors as they are. Fixed ones keep 1.

    Without any penalty a component's scale is arbitrary, and a vanishing one may move it far from mode to mode. Its
    scale is then balanced even without `rescale`, or set to zero if the component is faint.
    """
    if len(problem.free) == 1:  # its scale is what is fitted
        return None
    free = [factors[mode] for mode in problem.free]
    scales = np.ones((len(factors), factors[0].shape[1]))
    if any(problem.alpha) or any(problem.beta):
        if not problem.settings.rescale:
            return None
        scales[list(problem.free)] = best_scales(problem, free)
        return scales
    strength = weights(factors)
    is_faint = (strength > 0) & (strength < FAINT * strength.max())
    has_drifted = _product(sizes) > math.sqrt(LARGEST_PRODUCT[factors[0].dtype])
    if problem.normalises or not (has_drifted or is_faint.any()):
        return None
    from sparse_ncp.solvers.kernels.elementwise import balance

    # Give every component the same norm in all modes.
    squares = np.array([np.square(A.astype(np.float64, copy=False)).sum(axis=0) for A in free])
    equal, alive = np.ones_like(squares), (squares > VANISHED).all(axis=0)
    equal[:, alive] = balance(squares[:, alive], np.zeros_like(squares[:, alive]))
    scales[list(problem.free)] = np.where(is_faint, 0.0, equal)
    return scales


def rescaled(factors: Sequence[Array], memory: Sequence[Memory], scales: Float64) -> tuple[list[Array], list[Memory]]:
    """Return the scaled factors, and the memory of the method scaled with them."""
    return (
        [(A * s).astype(A.dtype, copy=False) for A, s in zip(factors, scales, strict=True)],
        [kept.scaled(s) for kept, s in zip(memory, scales, strict=True)],
    )


def column_sizes(A: Array) -> Float64:
    """Return an upper bound of each column's norm, without squares that might overflow; zero for a zero column."""
    from sparse_ncp.solvers.kernels.elementwise import column_maxima  # numba, see methods/hals.py

    return column_maxima(np.ascontiguousarray(A)) * math.sqrt(len(A))


class OutOfRange(InvalidInput):
    """Factors that the working precision cannot hold."""


def check_overflow(sizes: Sequence[Float64], dtype: np.dtype[Any]) -> None:
    """Refuse penalties so far apart that they drive the scale from one mode into another without end."""
    bound = math.prod(max(float(size.max()), 1.0) for size in sizes)  # this way round, what is not a number stays
    if not bound < LARGEST_PRODUCT[dtype] and not _product(sizes) < LARGEST_PRODUCT[dtype]:
        problem = f"the penalties drive the factors out of the range of {dtype}"
        raise OutOfRange("alpha", problem, "give the modes weights (alpha, beta) of similar size, or set rescale")


def _product(sizes: Sequence[Float64]) -> float:
    """Return the largest product over the modes of a component's column sizes, each at least 1."""
    with np.errstate(over="ignore"):
        return float(np.maximum(sizes, 1.0).prod(axis=0).max())
