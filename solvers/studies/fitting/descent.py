"""HALS and multiplicative updates of small tensors, compiled as whole fits: a study makes thousands of short ones.

Factors are stacked: one R × Σ Iₙ array, mode after mode, so that every inner loop runs along an index. The tensor is a
matrix Z whose rows are the modes before `cut` and whose columns are the others, both with the last mode fastest.
"""

import math

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.jit import jit, jit_inline
from sparse_ncp.solvers.tensor.products import Float64

Places = NDArray[np.int64]

INNER_PASSES = 3
# Sweeps between two tests of convergence, and between two completions of clipped readings.
STRETCH, COMPLETION = 4, 3
# Below this ratio of model to noise, with its sign changed, Φ underflows; its expansion is exact to eight digits there.
FAR = 30.0
# Smallest model of a count.
TINY = 1e-300


@jit_inline
def _products(F: Float64, lengths: Places, start: int, first: int, last: int) -> Float64:
    """Return the Khatri-Rao product of modes `first` to `last` (exclusive), the first of which begins at `start`."""
    rank = F.shape[0]
    size = 1
    for mode in range(first, last):
        size *= lengths[mode]
    product = np.ones((rank, size))
    for r in range(rank):
        filled, begin = 1, start
        for mode in range(first, last):
            length = lengths[mode]
            for place in range(filled - 1, -1, -1):
                value = product[r, place]
                for i in range(length):
                    product[r, place * length + i] = value * F[r, begin + i]
            filled *= length
            begin += length
    return product


@jit_inline
def _mttkrp(T: Float64, F: Float64, lengths: Places, start: int, first: int, last: int, mode: int) -> Float64:
    """Contract a partial product T, of the modes `first` to `last`, with all of these but one."""
    rank, length = F.shape[0], lengths[mode]
    inner = start
    for other in range(first, mode + 1):
        inner += lengths[other]
    before, after = (
        _products(F, lengths, start, first, mode),
        _products(F, lengths, inner, mode + 1, last),
    )
    outer, width = before.shape[1], after.shape[1]
    M = np.zeros((rank, length))
    for r in range(rank):
        for b in range(outer):
            weight = before[r, b]
            base = b * length * width
            if width == 1:  # no further mode, or only such of length 1
                for i in range(length):
                    M[r, i] += weight * after[r, 0] * T[r, base + i]
            else:
                for i in range(length):
                    total = 0.0
                    for a in range(width):
                        total += T[r, base + i * width + a] * after[r, a]
                    M[r, i] += weight * total
    return M


@jit_inline
def _gram(F: Float64, begin: int, end: int) -> Float64:
    rank = F.shape[0]
    G = np.empty((rank, rank))
    for r in range(rank):
        for s in range(r + 1):
            total = 0.0
            for i in range(begin, end):
                total += F[r, i] * F[s, i]
            G[r, s] = total
            G[s, r] = total
    return G


@jit_inline
def _hals(F: Float64, M: Float64, Q: Float64, begin: int) -> None:
    """a_r ← [a_r + (M_r − A Q_r) / Q_rr]₊ for r = 1 … R; a component without curvature has vanished."""
    rank, length = M.shape
    rest = np.empty(length)
    for _ in range(INNER_PASSES):
        for r in range(rank):
            if Q[r, r] <= 0:
                for i in range(length):
                    F[r, begin + i] = 0.0
                continue
            for i in range(length):
                rest[i] = M[r, i]
            for s in range(rank):
                if s != r:
                    for i in range(length):
                        rest[i] -= Q[r, s] * F[s, begin + i]
            for i in range(length):
                F[r, begin + i] = max(0.0, rest[i] / Q[r, r])


@jit_inline
def _expected_below(mean: float, deviation: float) -> float:
    """Return E[y | y ≤ 0] of a normal y, m − σ φ(a)/Φ(a) with a = −m/σ."""
    a = mean / deviation
    if a > FAR:
        mills = a + 1 / a - 2 / a**3
    else:
        mills = math.exp(-0.5 * a * a) / (math.sqrt(2 * math.pi) * 0.5 * math.erfc(a / math.sqrt(2.0)))
    return mean - deviation * mills


@jit_inline
def _complete(
    entries: Float64, model: Float64, missing: Places, clipped: Places, deviation: float, is_due: bool
) -> None:
    """Replace missing entries by the model, and clipped ones, if that is due, by what they are expected to be."""
    for place in missing:
        entries[place] = model[place]
    if is_due:
        for place in clipped:
            entries[place] = _expected_below(model[place], deviation)


@jit_inline
def _gram_of_others(G: Float64, mode: int) -> Float64:
    Q = np.ones(G.shape[1:])
    for other in range(len(G)):
        if other != mode:
            Q *= G[other]
    return Q


@jit
def hals(
    Z: Float64, F: Float64, lengths: Places, cut: int, missing: Places, clipped: Places, deviation: float,
    sweeps: int, tolerance: float,
) -> float:  # fmt: skip
    """Fit F to Z in place until the error changes by less than the tolerance per sweep; return the squared error.

    Before every sweep the `missing` entries of Z are replaced by the model, and every few sweeps the `clipped` ones by
    what is expected below zero: the fixed points are those of a fit to the observed entries alone.
    """
    order, rank, middle = len(lengths), F.shape[0], lengths[:cut].sum()
    entries, is_complete = Z.reshape(-1), len(missing) == 0 and len(clipped) == 0
    squares = np.sum(entries * entries)
    G, M, Q = np.empty((order, rank, rank)), np.empty((rank, 0)), np.empty((rank, rank))
    left, right = np.empty((rank, 0)), np.empty((rank, 0))
    error, before = np.inf, np.inf
    for step in range(-2, 2 * sweeps):  # the first two only prepare the products of both halves of the modes
        is_left, sweep = step % 2 == 0, step // 2
        start, first, last = (0, 0, cut) if is_left else (middle, cut, order)
        if is_left and step >= 0 and not is_complete:
            expected = np.dot(left.T, right).reshape(-1)
            _complete(entries, expected, missing, clipped, deviation, sweep % COMPLETION == 0)
        partial = np.empty((rank, 0))
        if step >= 0:
            partial = np.dot(right, Z.T) if is_left else np.dot(left, Z)
        begin = start
        for mode in range(first, last):
            if step >= 0:
                M, Q = _mttkrp(partial, F, lengths, start, first, last, mode), _gram_of_others(G, mode)
                _hals(F, M, Q, begin)
            G[mode] = _gram(F, begin, begin + lengths[mode])
            begin += lengths[mode]
        if step > 0 and not is_left and (sweep % STRETCH == STRETCH - 1 or sweep == sweeps - 1):
            if not is_complete:
                squares = np.sum(entries * entries)
            cross = np.sum(M * F[:, begin - lengths[order - 1] : begin])
            error = max(0.0, squares - 2 * cross + np.sum(G[order - 1] * Q))
            if sweep % STRETCH == STRETCH - 1:
                if abs(before - error) <= STRETCH * tolerance * error:
                    break
                before = error
        product = _products(F, lengths, start, first, last)
        if is_left:
            left = product
        else:
            right = product
    return error


@jit
def deviance(Z: Float64, F: Float64, lengths: Places, cut: int, missing: Places, sweeps: int) -> None:
    """Lower the Poisson deviance of F in place by multiplicative updates.

    A ← A ∗ MTTKRP(Z / model) / (∗ over the other modes of 1ᵀA); a missing entry counts as equal to the model.
    """
    order, rank, middle = len(lengths), F.shape[0], lengths[:cut].sum()
    for _ in range(sweeps):
        begin = 0
        for mode in range(order):
            left, right = _products(F, lengths, 0, 0, cut), _products(F, lengths, middle, cut, order)
            ratio = np.dot(left.T, right)
            for row in range(Z.shape[0]):
                for column in range(Z.shape[1]):
                    ratio[row, column] = Z[row, column] / max(ratio[row, column], TINY)
            flat = ratio.reshape(-1)
            for place in missing:
                flat[place] = 1.0
            is_left = mode < cut
            start, first, last = (0, 0, cut) if is_left else (middle, cut, order)
            partial = np.dot(right, ratio.T) if is_left else np.dot(left, ratio)
            M = _mttkrp(partial, F, lengths, start, first, last, mode)
            for r in range(rank):
                total, place = 1.0, 0
                for other in range(order):
                    if other != mode:
                        own = 0.0
                        for i in range(place, place + lengths[other]):
                            own += F[r, i]
                        total *= own
                    place += lengths[other]
                for i in range(lengths[mode]):
                    F[r, begin + i] = F[r, begin + i] * M[r, i] / total if total > 0 else 0.0
            begin += lengths[mode]
