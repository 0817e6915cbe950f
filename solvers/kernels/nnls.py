"""Nonnegative least squares, row by row: x ← argmin ½ xᵀQx − cᵀx over x ≥ 0, for Q of unit diagonal.

Both methods search for the passive set, where x > 0 and the gradient Qx − c is zero; elsewhere x = 0 and the gradient
is nonnegative. Both start from the passive set of the previous solution. Everything is in one file, because numba's
cache does not notice changes in functions that are imported from others. Loops over entries avoid the temporary array
that numba would allocate for an expression.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sparse_ncp.solvers.kernels.simd import (
    I64,
    LANES,
    LINE,
    MOST_VECTORS,
    Value,
    aligned_zeros,
    broadcast,
    emit_difference,
    item,
    padded_length,
)
from sparse_ncp.solvers.tensor.jit import jit, jit_inline
from sparse_ncp.solvers.tensor.products import Float64

EPS = 2.0**-52
# Rounds without improvement in which all wrong signs are exchanged at once, before the slow but safe rule takes over.
PATIENCE = 3


def difference(typing, target, start, factors, chosen, count, source, step, width):  # type: ignore[no-untyped-def]
    def emit(context: Any, builder: Value, signature: Any, arguments: Sequence[Value]) -> Value:
        target, start, factors, chosen, count, source, step, width = arguments

        def term(k: Value) -> tuple[Value, Value]:
            row = builder.add(source, builder.mul(item(builder, chosen, k, I64), step))
            return broadcast(builder, item(builder, factors, k)), row

        emit_difference(builder, target, start, count, width, term)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 8), emit


# All arguments are addresses and counts; steps count bytes, widths vectors.
# target ← start − Σ_k factors[k] source[chosen[k]], over the first `count` of k and up to `MOST_VECTORS` vectors.
_difference: Any = intrinsic(difference)


@jit_inline
def _solve_passive(
    Q: Float64,
    c: Float64,
    passive: NDArray[np.bool_],
    x: Float64,
    U: Float64,
    L: Float64,
    chosen: NDArray[np.int64],
    changed: int,
) -> int:
    """Solve Q_PP x_P = c_P by elimination in the rows P of U, with x zero elsewhere; return the length of P.

    The other columns stay in place and are eliminated too, which costs less than moving them. The last four rows of U
    have the inverse pivots, the right-hand side, the factors, and the initial value of a row or of the solution; L has
    the factors of all rows. Up to `changed`, P, U and L are those of the previous call for this Q and c.
    """
    rank, width = len(Q), U.shape[1] // LANES
    pivots, values, factors, rest = rank, rank + 1, rank + 2, rank + 3
    step = 8 * U.shape[1]
    u0, l0, q0, x0, p0 = U.ctypes.data, L.ctypes.data, Q.ctypes.data, x.ctypes.data, chosen.ctypes.data
    f0, z0 = u0 + factors * step, u0 + rest * step
    count = 0
    for j in range(rank):
        x[j] = 0.0
        if not passive[j]:
            continue
        if j < changed:
            count += 1
            continue
        value = c[j]
        for k in range(count):
            r = chosen[k]
            factor = U[r, j] * U[pivots, r]
            U[factors, k] = factor
            L[j, r] = factor
            value -= factor * U[values, r]
        for first in range(j // LANES, width, MOST_VECTORS):
            place, now = first * LINE, min(MOST_VECTORS, width - first)
            _difference(u0 + j * step + place, q0 + j * step + place, f0, p0, count, u0 + place, step, now)
        U[pivots, j], U[values, j] = 1.0 / max(U[j, j], EPS), value
        chosen[count] = j
        count += 1
    for k in range(count):
        j = chosen[k]
        U[rest, j] = U[values, j] * U[pivots, j]
    # Go through the rows of L from the last to the first; the remaining entries of a row are not needed any more.
    for k in range(count - 1, -1, -1):
        j = chosen[k]
        x[j] = U[rest, j]
        for first in range(0, j // LANES + 1, MOST_VECTORS):
            place, now = first * LINE, min(MOST_VECTORS, j // LANES + 1 - first)
            _difference(z0 + place, z0 + place, x0 + 8 * j, p0 + 8 * k, 1, l0 + place, step, now)
    return count


@jit_inline
def _gradient(
    Q: Float64, c: Float64, x: Float64, y: Float64, U: Float64, chosen: NDArray[np.int64], count: int
) -> None:
    """y ← Qx − c, where x is zero except for the first `count` chosen."""
    rank, width, step = len(Q), Q.shape[1] // LANES, 8 * Q.shape[1]
    factors, start = rank + 2, rank + 3
    for r in range(rank):
        U[start, r] = -c[r]
    for k in range(count):
        U[factors, k] = -x[chosen[k]]
    y0, u0, p0, q0 = y.ctypes.data, U.ctypes.data, chosen.ctypes.data, Q.ctypes.data
    s0, f0 = u0 + start * step, u0 + factors * step
    for first in range(0, width, MOST_VECTORS):
        place = LINE * first
        _difference(y0 + place, s0 + place, f0, p0, count, q0 + place, step, min(MOST_VECTORS, width - first))


@jit_inline
def _rounding(rank: int, c: Float64, x: Float64) -> float:
    """Bound the rounding error of an entry of Qx − c; no entry of Q exceeds 1."""
    largest, total = 0.0, 0.0
    for r in range(len(c)):
        largest = max(largest, abs(c[r]))
        total += abs(x[r])
    return 4 * EPS * rank * (largest + total)


@jit_inline
def _active_set(
    Q: Float64,
    c: Float64,
    passive: NDArray[np.bool_],
    x: Float64,
    y: Float64,
    trial: Float64,
    U: Float64,
    L: Float64,
    chosen: NDArray[np.int64],
) -> None:
    """Active-set method from a feasible x: add the steepest variable, move to the solution, drop what hits zero.

    The objective decreases in every step. The cap on steps guards against rounding; x is feasible and no worse than at
    the start when it is reached.
    """
    rank = len(Q)
    changed = 0
    for _ in range(10 * rank + 100):
        for _ in range(rank + 1):
            count = _solve_passive(Q, c, passive, trial, U, L, chosen, changed)
            step, blocking = 1.0, -1
            for r in range(rank):
                if passive[r] and trial[r] < 0:
                    ratio = x[r] / (x[r] - trial[r])
                    if blocking < 0 or ratio < step:
                        step, blocking = ratio, r
            if blocking < 0:
                for r in range(rank):
                    x[r] = trial[r]
                changed = rank
                break
            for r in range(rank):
                if passive[r]:
                    x[r] = 0.0 if r == blocking else max(0.0, x[r] + step * (trial[r] - x[r]))
            passive[blocking], changed = False, blocking
        _gradient(Q, c, x, y, U, chosen, count)
        tolerance = _rounding(rank, c, x)
        steepest = -1
        for r in range(rank):
            if not passive[r] and y[r] < -tolerance and (steepest < 0 or y[r] < y[steepest]):
                steepest = r
        if steepest < 0:
            return
        passive[steepest], changed = True, min(changed, steepest)


@jit_inline
def _pivoting(
    Q: Float64,
    c: Float64,
    passive: NDArray[np.bool_],
    x: Float64,
    y: Float64,
    U: Float64,
    L: Float64,
    chosen: NDArray[np.int64],
) -> bool:
    """Exchange all variables of wrong sign at once or, if that stalls, only the last one, which cannot cycle.

    Usually a handful of rounds is enough. A row that exceeds the cap has a nearly singular Q, for which the active-set
    method is faster.
    """
    rank = len(Q)
    fewest, patience = rank + 1, PATIENCE
    changed = 0
    for _ in range(rank + 20):
        count = _solve_passive(Q, c, passive, x, U, L, chosen, changed)
        _gradient(Q, c, x, y, U, chosen, count)
        tolerance = _rounding(rank, c, x)
        wrong, last, changed = 0, -1, rank
        for r in range(rank):
            if (passive[r] and x[r] < 0) or (not passive[r] and y[r] < -tolerance):
                wrong += 1
                last = r
                changed = min(changed, r)
        if wrong == 0:
            return True
        if wrong < fewest:
            fewest, patience = wrong, PATIENCE
        elif patience > 0:
            patience -= 1
        else:
            passive[last], changed = not passive[last], last
            continue
        for r in range(rank):
            if passive[r]:
                passive[r] = not x[r] < 0
            else:
                passive[r] = y[r] < -tolerance
    return False


@jit_inline
def _begin(start: Float64, i: int, x: Float64, passive: NDArray[np.bool_]) -> None:
    """Set x and its passive set from row i of the start."""
    for r in range(len(passive)):
        x[r] = start[i, r]
        passive[r] = x[r] > 0


@jit_inline
def _pad(Q: Float64, padded: Float64) -> None:
    for r in range(Q.shape[0]):
        for s in range(Q.shape[1]):
            padded[r, s] = Q[r, s]


@jit
def active_set_rows(start: Float64, C: Float64, Q: Float64, out: Float64) -> None:
    """Solve for every row by the active-set method, from the feasible rows of `start`."""
    rank = Q.shape[-1]
    passive, chosen = np.empty(rank, np.bool_), np.empty(rank, np.int64)
    columns = padded_length(rank)
    own, U, L = aligned_zeros(rank, columns), aligned_zeros(rank + 4, columns), aligned_zeros(rank, columns)
    vectors = aligned_zeros(4, columns)
    c, x, y, trial = vectors[0], vectors[1], vectors[2], vectors[3]
    for i in range(len(C)):
        if i == 0 or Q.ndim == 3:
            _pad(Q if Q.ndim == 2 else Q[i], own)
        for r in range(rank):
            c[r] = C[i, r]
        _begin(start, i, x, passive)
        _active_set(own, c, passive, x, y, trial, U, L, chosen)
        for r in range(rank):
            out[i, r] = x[r]


@jit
def bpp_one_by_one(start: Float64, C: Float64, Q: Float64, out: Float64) -> None:
    """Solve for every row by block principal pivoting or, if that does not converge, by the active-set method."""
    rank = Q.shape[-1]
    passive, chosen = np.empty(rank, np.bool_), np.empty(rank, np.int64)
    columns = padded_length(rank)
    own, U, L = aligned_zeros(rank, columns), aligned_zeros(rank + 4, columns), aligned_zeros(rank, columns)
    vectors = aligned_zeros(4, columns)
    c, x, y, trial = vectors[0], vectors[1], vectors[2], vectors[3]
    for i in range(len(C)):
        if i == 0 or Q.ndim == 3:
            _pad(Q if Q.ndim == 2 else Q[i], own)
        for r in range(rank):
            c[r] = C[i, r]
        _begin(start, i, x, passive)
        if not _pivoting(own, c, passive, x, y, U, L, chosen):
            _begin(start, i, x, passive)
            _active_set(own, c, passive, x, y, trial, U, L, chosen)
        for r in range(rank):
            out[i, r] = x[r]
