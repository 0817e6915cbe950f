"""Nonnegative least squares, row by row: x ← argmin ½ xᵀQx − cᵀx over x ≥ 0, for Q of unit diagonal.

Both methods look for the passive set, where x > 0 and the gradient Qx − c is zero; elsewhere x = 0 and the gradient
is nonnegative. Both start from the set that the last solution left behind. Its parts are in one file, because
numba's cache does not notice a change in a function that another file brings in. Entries are taken one by one where
numba would allocate an array for an expression.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from solvers.kernels.vectors import I64, LANES, LINE, VECTOR, Value, item, load, spread, store
from solvers.tensor.compiled import compiled, inlined
from solvers.tensor.products import Float64

EPS = 2.0**-52
# Rounds in which exchanging all wrong signs at once need not improve, before the slow but sure rule takes over.
PATIENCE = 3
# Rows of Q and U, and x and y, are padded with zeros to a multiple of a vector. So many vectors of a row are in
# registers together.
MOST_VECTORS = 4


def _emit_difference(context: Any, builder: Value, signature: Any, arguments: Sequence[Value]) -> Value:
    """One way for every width: the vectors of the target stay in registers while the rows go by."""
    target, start, factors, chosen, count, source, step, width = arguments
    done = builder.append_basic_block("done")
    switch = builder.switch(width, done)
    for vectors in range(1, MOST_VECTORS + 1):
        entry, loop, end = (builder.append_basic_block(f"{name}{vectors}") for name in ("start", "rows", "store"))
        switch.add_case(ir.Constant(I64, vectors), entry)
        builder.position_at_end(entry)
        begun = [load(builder, start, place) for place in range(vectors)]
        builder.cbranch(builder.icmp_signed("<", ir.Constant(I64, 0), count), loop, end)
        builder.position_at_end(loop)
        k, rest = builder.phi(I64), [builder.phi(VECTOR) for _ in range(vectors)]
        k.add_incoming(ir.Constant(I64, 0), entry)
        row = builder.add(source, builder.mul(item(builder, chosen, k, I64), step))
        factor = spread(builder, item(builder, factors, k))
        after = []
        for place in range(vectors):
            product = builder.fmul(factor, load(builder, row, place), flags=("contract",))
            after.append(builder.fsub(rest[place], product, flags=("contract",)))
        following = builder.add(k, ir.Constant(I64, 1))
        k.add_incoming(following, loop)
        for place in range(vectors):
            rest[place].add_incoming(begun[place], entry)
            rest[place].add_incoming(after[place], loop)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, end)
        builder.position_at_end(end)
        for place in range(vectors):
            value = builder.phi(VECTOR)
            value.add_incoming(begun[place], entry)
            value.add_incoming(after[place], loop)
            rest[place] = value
        for place in range(vectors):
            store(builder, rest[place], target, place)
        builder.branch(done)
    builder.position_at_end(done)
    return context.get_dummy_value()


def _emit_dot(context: Any, builder: Value, signature: Any, arguments: Sequence[Value]) -> Value:
    a, b, count = arguments
    before, loop, after = builder.block, builder.append_basic_block("dot"), builder.append_basic_block("dot_done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k, total = builder.phi(I64), builder.phi(VECTOR)
    k.add_incoming(ir.Constant(I64, 0), before)
    total.add_incoming(ir.Constant(VECTOR, None), before)
    offset = builder.mul(k, ir.Constant(I64, LINE))
    left, right = (load(builder, builder.add(start, offset)) for start in (a, b))
    summed = builder.fadd(total, builder.fmul(left, right, flags=("contract",)), flags=("contract",))
    following = builder.add(k, ir.Constant(I64, 1))
    k.add_incoming(following, loop)
    total.add_incoming(summed, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    width = LANES
    while width > 1:
        width //= 2
        low, high = (
            ir.Constant(ir.VectorType(ir.IntType(32), width), [first + lane for lane in range(width)])
            for first in (0, width)
        )
        nothing = ir.Constant(summed.type, ir.Undefined)
        summed = builder.fadd(
            builder.shuffle_vector(summed, nothing, low), builder.shuffle_vector(summed, nothing, high)
        )
    return builder.extract_element(summed, ir.Constant(ir.IntType(32), 0))


def _difference_of(typing, target, start, factors, chosen, count, source, step, width):  # type: ignore[no-untyped-def]
    return types.void(*(types.int64,) * 8), _emit_difference


def _dot_of(typing, a, b, count):  # type: ignore[no-untyped-def]
    return types.float64(types.int64, types.int64, types.int64), _emit_dot


# All arguments are addresses and counts; steps count bytes, widths vectors.
# target ← start − Σ_k factors[k] source[chosen[k]], over the first `count` of k and up to `MOST_VECTORS` vectors.
_difference: Any = intrinsic(_difference_of)
# Σ a b over a count of vectors, one at least.
_dot: Any = intrinsic(_dot_of)


@inlined
def _padded_length(rank: int) -> int:
    return (rank + LANES - 1) // LANES * LANES


@inlined
def _aligned(rows: int, columns: int) -> Float64:
    """Zeros, from a multiple of a vector's length on: no vector lies across two lines of the cache."""
    buffer = np.zeros(rows * columns + LANES)
    first = (-buffer.ctypes.data // 8) % LANES
    return buffer[first : first + rows * columns].reshape((rows, columns))


@inlined
def _solve_passive(
    Q: Float64, c: Float64, passive: NDArray[np.bool_], x: Float64, U: Float64, chosen: NDArray[np.int64], changed: int
) -> int:
    """x ← the solution of Q_PP x_P = c_P, zero elsewhere; by elimination in the rows P of U. Returns the length of P.

    The other columns stay where they are and are eliminated along: that costs less than to move them. The last four
    rows of U have the inverse pivots, the right-hand side, and the factors and the beginning of a row. Up to `changed`
    P is that of the last call for this Q and c, and so are the rows of U.
    """
    rank, width = len(c), U.shape[1] // LANES
    step, line = 8 * U.shape[1], LINE
    pivots, values, factors = U[rank], U[rank + 1], U[rank + 2]
    u0, q0, x0 = U.ctypes.data, Q.ctypes.data, x.ctypes.data
    f0, p0 = factors.ctypes.data, chosen.ctypes.data
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
            factors[k] = U[r, j] * pivots[r]
            value -= factors[k] * values[r]
        for first in range(j // LANES, width, MOST_VECTORS):
            place, now = first * line, min(MOST_VECTORS, width - first)
            _difference(u0 + j * step + place, q0 + j * step + place, f0, p0, count, u0 + place, step, now)
        pivots[j], values[j] = 1.0 / max(U[j, j], EPS), value
        chosen[count] = j
        count += 1
    for k in range(count - 1, -1, -1):
        j = chosen[k]
        place = j // LANES
        # So far x is zero up to j.
        rest = _dot(u0 + j * step + place * line, x0 + place * line, width - place)
        x[j] = (values[j] - rest) * pivots[j]
    return count


@inlined
def _gradient(
    Q: Float64, c: Float64, x: Float64, y: Float64, U: Float64, chosen: NDArray[np.int64], count: int
) -> None:
    """y ← Qx − c; x is zero but for the first `count` chosen."""
    rank, width, step = len(c), Q.shape[1] // LANES, 8 * Q.shape[1]
    factors, start = U[rank + 2], U[rank + 3]
    for r in range(rank):
        start[r] = -c[r]
    for k in range(count):
        factors[k] = -x[chosen[k]]
    y0, s0, f0, p0, q0 = y.ctypes.data, start.ctypes.data, factors.ctypes.data, chosen.ctypes.data, Q.ctypes.data
    for first in range(0, width, MOST_VECTORS):
        place = LINE * first
        _difference(y0 + place, s0 + place, f0, p0, count, q0 + place, step, min(MOST_VECTORS, width - first))


@inlined
def _rounding(c: Float64, x: Float64) -> float:
    """How far below zero rounding alone can bring an entry of Qx − c; no entry of Q exceeds 1."""
    largest, total = 0.0, 0.0
    for r in range(len(c)):
        largest = max(largest, abs(c[r]))
    for r in range(len(x)):
        total += abs(x[r])
    return 4 * EPS * len(c) * (largest + total)


@inlined
def _active_set(
    Q: Float64,
    c: Float64,
    passive: NDArray[np.bool_],
    x: Float64,
    y: Float64,
    trial: Float64,
    U: Float64,
    chosen: NDArray[np.int64],
) -> None:
    """From a feasible x and its passive set: add the steepest variable, walk to the solution, drop what hits zero.

    The objective falls with every step. The cap is for rounding only; x is feasible and no worse than at the start.
    """
    rank = len(c)
    changed = 0
    for _ in range(10 * rank + 100):
        for _ in range(rank + 1):
            count = _solve_passive(Q, c, passive, trial, U, chosen, changed)
            step, blocking = 1.0, -1
            for r in range(rank):
                if passive[r] and trial[r] < 0:
                    ratio = x[r] / (x[r] - trial[r])
                    if blocking < 0 or ratio < step:
                        step, blocking = ratio, r
            if blocking < 0:
                x[:] = trial
                changed = rank
                break
            for r in range(rank):
                if passive[r]:
                    x[r] = 0.0 if r == blocking else max(0.0, x[r] + step * (trial[r] - x[r]))
            passive[blocking], changed = False, blocking
        _gradient(Q, c, x, y, U, chosen, count)
        tolerance = _rounding(c, x)
        steepest = -1
        for r in range(rank):
            if not passive[r] and y[r] < -tolerance and (steepest < 0 or y[r] < y[steepest]):
                steepest = r
        if steepest < 0:
            return
        passive[steepest], changed = True, min(changed, steepest)


@inlined
def _pivoting(
    Q: Float64,
    c: Float64,
    passive: NDArray[np.bool_],
    x: Float64,
    y: Float64,
    U: Float64,
    chosen: NDArray[np.int64],
) -> bool:
    """Exchange every variable of wrong sign at once; if that stalls, only the last one, which cannot cycle.

    A handful of rounds is usual. A row that needs more than the cap has a nearly singular Q, where the active-set
    method is quicker.
    """
    rank = len(c)
    fewest, patience = rank + 1, PATIENCE
    changed = 0
    for _ in range(rank + 20):
        count = _solve_passive(Q, c, passive, x, U, chosen, changed)
        _gradient(Q, c, x, y, U, chosen, count)
        tolerance = _rounding(c, x)
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


@inlined
def _find_positive(row: Float64, passive: NDArray[np.bool_]) -> None:
    for r in range(len(row)):
        passive[r] = row[r] > 0


@inlined
def _pad(Q: Float64, padded: Float64) -> None:
    for r in range(Q.shape[0]):
        padded[r, : Q.shape[1]] = Q[r]


@compiled
def active_set_rows(start: Float64, C: Float64, Q: Float64, out: Float64) -> None:
    """Every row by the active-set method, from the feasible row `start`."""
    rank = Q.shape[-1]
    passive, chosen = np.empty(rank, np.bool_), np.empty(rank, np.int64)
    columns = _padded_length(rank)
    own, U, vectors = _aligned(rank, columns), _aligned(rank + 4, columns), _aligned(3, columns)
    x, y, trial = vectors[0], vectors[1], vectors[2]
    for i in range(len(C)):
        if i == 0 or Q.ndim == 3:
            _pad(Q if Q.ndim == 2 else Q[i], own)
        x[:rank] = start[i]
        _find_positive(start[i], passive)
        _active_set(own, C[i], passive, x, y, trial, U, chosen)
        out[i] = x[:rank]


@compiled
def pivoting_rows(start: Float64, C: Float64, Q: Float64, out: Float64) -> None:
    """Every row by block principal pivoting; a row where it does not converge, by the active-set method."""
    rank = Q.shape[-1]
    passive, chosen = np.empty(rank, np.bool_), np.empty(rank, np.int64)
    columns = _padded_length(rank)
    own, U, vectors = _aligned(rank, columns), _aligned(rank + 4, columns), _aligned(3, columns)
    x, y, trial = vectors[0], vectors[1], vectors[2]
    for i in range(len(C)):
        if i == 0 or Q.ndim == 3:
            _pad(Q if Q.ndim == 2 else Q[i], own)
        _find_positive(start[i], passive)
        if not _pivoting(own, C[i], passive, x, y, U, chosen):
            x[:rank] = start[i]
            _find_positive(start[i], passive)
            _active_set(own, C[i], passive, x, y, trial, U, chosen)
        out[i] = x[:rank]
