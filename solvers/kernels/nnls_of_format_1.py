"""Nonnegative least squares as it was when states had format 1; `nnls.py` is what every other run uses.

Kept word for word, since its bits depend on what the compiler makes of each loop. It goes when no such state is left.
"""

import numpy as np
from numpy.typing import NDArray

from solvers.tensor.compiled import compiled, inlined
from solvers.tensor.products import Float64

EPS = 2.0**-52
# Rounds in which exchanging all wrong signs at once need not improve, before the slow but sure rule takes over.
PATIENCE = 3


@inlined
def _solve_passive(
    Q: Float64, c: Float64, passive: NDArray[np.bool_], x: Float64, L: Float64, chosen: NDArray[np.int64]
) -> None:
    """x ← the solution of Q_PP x_P = c_P, zero elsewhere; by Cholesky in the first rows of L."""
    count = 0
    for r in range(len(c)):
        x[r] = 0.0
        if passive[r]:
            chosen[count] = r
            count += 1
    for a in range(count):
        for b in range(a + 1):
            value = Q[chosen[a], chosen[b]]
            for k in range(b):
                value -= L[a, k] * L[b, k]
            L[a, b] = np.sqrt(max(value, 1e-300)) if a == b else value / L[b, b]
        value = c[chosen[a]]
        for k in range(a):
            value -= L[a, k] * x[chosen[k]]
        x[chosen[a]] = value / L[a, a]
    for a in range(count - 1, -1, -1):
        value = x[chosen[a]] / L[a, a]
        x[chosen[a]] = value
        for k in range(a):
            x[chosen[k]] -= L[a, k] * value


@inlined
def _gradient(Q: Float64, c: Float64, x: Float64, y: Float64) -> None:
    """y ← Qx − c."""
    y[:] = -c
    for r in range(len(c)):
        if x[r] != 0.0:
            for s in range(len(c)):
                y[s] += x[r] * Q[r, s]


@inlined
def _rounding(c: Float64, x: Float64) -> float:
    """How far below zero rounding alone can bring an entry of Qx − c; no entry of Q exceeds 1."""
    return float(4 * EPS * len(c) * (np.abs(c).max() + np.abs(x).sum()))


@inlined
def _active_set(
    Q: Float64,
    c: Float64,
    passive: NDArray[np.bool_],
    x: Float64,
    y: Float64,
    trial: Float64,
    L: Float64,
    chosen: NDArray[np.int64],
) -> None:
    """From a feasible x and its passive set: add the steepest variable, walk to the solution, drop what hits zero.

    The objective falls with every step. The cap is for rounding only; x is feasible and no worse than at the start.
    """
    rank = len(c)
    for _ in range(10 * rank + 100):
        for _ in range(rank + 1):
            _solve_passive(Q, c, passive, trial, L, chosen)
            step, blocking = 1.0, -1
            for r in range(rank):
                if passive[r] and trial[r] < 0:
                    ratio = x[r] / (x[r] - trial[r])
                    if blocking < 0 or ratio < step:
                        step, blocking = ratio, r
            if blocking < 0:
                x[:] = trial
                break
            for r in range(rank):
                if passive[r]:
                    x[r] = 0.0 if r == blocking else max(0.0, x[r] + step * (trial[r] - x[r]))
            passive[blocking] = False
        _gradient(Q, c, x, y)
        tolerance = _rounding(c, x)
        steepest = -1
        for r in range(rank):
            if not passive[r] and y[r] < -tolerance and (steepest < 0 or y[r] < y[steepest]):
                steepest = r
        if steepest < 0:
            return
        passive[steepest] = True


@inlined
def _pivoting(
    Q: Float64,
    c: Float64,
    passive: NDArray[np.bool_],
    x: Float64,
    y: Float64,
    L: Float64,
    chosen: NDArray[np.int64],
) -> bool:
    """Exchange every variable of wrong sign at once; if that stalls, only the last one, which cannot cycle.

    A handful of rounds is usual. A row that needs more than the cap has a nearly singular Q, where the active-set
    method is quicker.
    """
    rank = len(c)
    fewest, patience = rank + 1, PATIENCE
    for _ in range(rank + 20):
        _solve_passive(Q, c, passive, x, L, chosen)
        _gradient(Q, c, x, y)
        tolerance = _rounding(c, x)
        wrong, last = 0, -1
        for r in range(rank):
            if (passive[r] and x[r] < 0) or (not passive[r] and y[r] < -tolerance):
                wrong += 1
                last = r
        if wrong == 0:
            return True
        if wrong < fewest:
            fewest, patience = wrong, PATIENCE
        elif patience > 0:
            patience -= 1
        else:
            passive[last] = not passive[last]
            continue
        for r in range(rank):
            if passive[r]:
                passive[r] = not x[r] < 0
            else:
                passive[r] = y[r] < -tolerance
    return False


@compiled
def active_set_rows(start: Float64, C: Float64, Q: Float64, out: Float64) -> None:
    """Every row by the active-set method, from the feasible row `start`."""
    rank = Q.shape[0]
    passive, chosen = np.empty(rank, np.bool_), np.empty(rank, np.int64)
    y, trial, L = np.empty(rank), np.empty(rank), np.empty((rank, rank))
    for i in range(len(C)):
        out[i] = start[i]
        passive[:] = start[i] > 0
        _active_set(Q, C[i], passive, out[i], y, trial, L, chosen)


@compiled
def pivoting_rows(start: Float64, C: Float64, Q: Float64, out: Float64) -> None:
    """Every row by block principal pivoting; a row where it does not converge, by the active-set method."""
    rank = Q.shape[0]
    passive, chosen = np.empty(rank, np.bool_), np.empty(rank, np.int64)
    y, trial, L = np.empty(rank), np.empty(rank), np.empty((rank, rank))
    for i in range(len(C)):
        passive[:] = start[i] > 0
        if not _pivoting(Q, C[i], passive, out[i], y, L, chosen):
            out[i] = start[i]
            passive[:] = start[i] > 0
            _active_set(Q, C[i], passive, out[i], y, trial, L, chosen)
