"""Block principal pivoting for many rows at a time: x ← argmin ½ xᵀQx − cᵀx over x ≥ 0, for Q of unit diagonal.

Each SIMD lane has a row of its own with its own passive set, where x > 0 and the gradient Qx − c is zero; elsewhere
x = 0 and the gradient is nonnegative. A round solves for the passive sets of all lanes at once, then exchanges all
variables of wrong sign. A row without any is finished and the next row takes its lane, so that the solution of a row
does not depend on its neighbours.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from sparse_ncp.solvers.kernels.nnls import bpp_one_by_one
from sparse_ncp.solvers.kernels.simd import (
    I64,
    LANES,
    LINE,
    MOST_VECTORS,
    Value,
    aligned_zeros,
    broadcast,
    constant,
    emit_difference,
    load,
    store,
)
from sparse_ncp.solvers.tensor.jit import jit, jit_inline
from sparse_ncp.solvers.tensor.products import Float64

EPS = 2.0**-52
# Rounds without improvement in which all wrong signs are exchanged, before the slow but safe rule takes over: only the
# last one, which cannot cycle. Usually a handful of rounds is enough; a row that needs MORE_ROUNDS more than it has
# variables has a nearly singular Q, for which the active-set method is faster.
PATIENCE, MORE_ROUNDS = 3, 20
# State of a lane: its row, the rounds so far, the fewest wrong signs, and the rounds left without improvement.
ROW, ROUNDS, FEWEST, PATIENT = range(4)
NO_ROW = -1
# Lanes pay off if at least (R − CHEAP) / COSTS of the R variables are passive (COSTS by the dimensions of Q): a single
# row skips variables that are not passive, which are most of the work if R is large.
CHEAP, COSTS = 10, {2: 80, 3: 50}


def difference(typing, target, start, factors, count, source, step, width):  # type: ignore[no-untyped-def]
    def emit(context: Any, builder: Value, signature: Any, arguments: Sequence[Value]) -> Value:
        target, start, factors, count, source, step, width = arguments

        def term(k: Value) -> tuple[Value, Value]:
            factor = load(builder, builder.add(factors, builder.mul(k, ir.Constant(I64, LINE))))
            return factor, builder.add(source, builder.mul(k, step))

        emit_difference(builder, target, start, count, width, term)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 7), emit


# All arguments are addresses and counts; the step counts bytes, the width vectors.
# target[t] ← start[t] − Σ_k factors[k] source[k, t], over the first `count` of k and up to `MOST_VECTORS` of t.
_difference: Any = intrinsic(difference)


@jit_inline
def _subtract(target: int, start: int, factors: int, count: int, source: int, step: int, width: int) -> None:
    """Apply `_difference` to any number of vectors."""
    for first in range(0, width, MOST_VECTORS):
        place = LINE * first
        now = min(MOST_VECTORS, width - first)
        _difference(target + place, start + place, factors, count, source + place, step, now)


def _elementwise(compute: Callable[[Value, Value, Value], Value]) -> Any:
    """Make an intrinsic target ← compute(one, other) for vectors at these addresses."""

    def emit(context: Any, builder: Value, signature: Any, arguments: Sequence[Value]) -> Value:
        target, one, other = arguments
        store(builder, compute(builder, load(builder, one), load(builder, other)), target)
        return context.get_dummy_value()

    def typed(typing, target, one, other):  # type: ignore[no-untyped-def]
        return types.void(*(types.int64,) * 3), emit

    return intrinsic(typed)


_multiply: Any = _elementwise(lambda builder, one, other: builder.fmul(one, other))
_subtract_from: Any = _elementwise(lambda builder, one, other: builder.fsub(one, other))
# The inverse pivot is zero outside the passive set.
_invert_pivot: Any = _elementwise(
    lambda builder, passive, pivot: builder.fdiv(
        passive, builder.select(builder.fcmp_ordered(">", pivot, constant(EPS)), pivot, constant(EPS))
    )
)


@jit_inline
def _solve_passive(Q: Float64, passive: Float64, x: Float64, y: Float64, W: Float64) -> None:
    """Solve Q_PP x_P = c_P in every lane, with x zero elsewhere, and set y ← Qx − c; c is the last column of Q.

    Row j of W has the factors of the previous rows, then row j of Q after elimination by them. A variable outside P has
    no pivot: it is eliminated but eliminates nothing. The last two rows have the inverse pivots and the initial value
    of the gradient.
    """
    rank, step = len(Q), LINE * Q.shape[1]
    w0, q0, p0, x0, y0 = W.ctypes.data, Q.ctypes.data, passive.ctypes.data, x.ctypes.data, y.ctypes.data
    inverse, start = w0 + rank * step, w0 + (rank + 1) * step
    nothing = start + LINE * rank
    for j in range(rank):
        row, place = w0 + j * step, LINE * j
        for k in range(j):
            _multiply(row + LINE * k, w0 + k * step + place, inverse + LINE * k)
        _subtract(row + place, q0 + j * step + place, row, j, w0 + place, step, rank + 1 - j)
        _invert_pivot(inverse + place, p0 + place, row + place)
    for j in range(rank):
        place = LINE * j
        _multiply(y0 + place, w0 + j * step + LINE * rank, inverse + place)
        _subtract_from(start + place, nothing, q0 + j * step + LINE * rank)
    for j in range(rank - 1, -1, -1):
        place = LINE * j
        _subtract_from(x0 + place, y0 + place, nothing)
        _subtract_from(inverse + place, nothing, y0 + place)
        _subtract(y0, y0, x0 + place, 1, w0 + j * step, step, j)
    _subtract(y0, start, inverse, rank, q0, step, rank)


def wrong_signs(typing, c, step, passive, x, y, wrong, rank, rounding):  # type: ignore[no-untyped-def]
    def emit(context: Any, builder: Value, signature: Any, arguments: Sequence[Value]) -> Value:
        c, step, passive, x, y, wrong, rank, rounding = arguments
        nothing, one = constant(0.0), constant(1.0)

        def at(address: Value, r: Value) -> Value:
            return load(builder, builder.add(address, builder.mul(r, ir.Constant(I64, LINE))))

        def size(value: Value) -> Value:
            return builder.select(builder.fcmp_ordered("<", value, nothing), builder.fneg(value), value)

        largest, total, count = (cgutils.alloca_once_value(builder, nothing) for _ in range(3))  # type: ignore[no-untyped-call]
        with cgutils.for_range(builder, rank) as loop:
            entry = size(load(builder, builder.add(c, builder.mul(loop.index, step))))
            so_far = builder.load(largest)
            builder.store(builder.select(builder.fcmp_ordered(">", entry, so_far), entry, so_far), largest)
            builder.store(builder.fadd(builder.load(total), size(at(x, loop.index))), total)
        sizes = builder.fadd(builder.load(largest), builder.load(total))
        bound = builder.fneg(builder.fmul(broadcast(builder, rounding), sizes))
        with cgutils.for_range(builder, rank) as loop:
            is_passive = builder.fcmp_ordered(">", at(passive, loop.index), nothing)
            is_wrong = builder.select(
                is_passive,
                builder.fcmp_ordered("<", at(x, loop.index), nothing),
                builder.fcmp_ordered("<", at(y, loop.index), bound),
            )
            found = builder.select(is_wrong, one, nothing)
            store(builder, found, builder.add(wrong, builder.mul(loop.index, ir.Constant(I64, LINE))))
            builder.store(builder.fadd(builder.load(count), found), count)
        store(builder, builder.load(count), builder.add(wrong, builder.mul(rank, ir.Constant(I64, LINE))))
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 7, types.float64), emit


# wrong[r] ← 1 if the sign of the variable or of its gradient is wrong, else 0; the last row has their number. Negative
# gradients within rounding, a fraction of the largest |c| plus the sum of |x|, do not count.
_find_wrong: Any = intrinsic(wrong_signs)


@jit
def exchange(start: Float64, C: Float64, Q: Float64, out: Float64) -> NDArray[np.int64]:
    """Solve for every row, from the passive set of its row in `start`; return the rows that did not converge."""
    count, rank = C.shape
    vectors = aligned_zeros((2 * rank + 2) * (rank + 1) + 4 * rank + 1, LANES)
    own = vectors[: rank * (rank + 1)].reshape((rank, rank + 1, LANES))
    W = vectors[rank * (rank + 1) : (2 * rank + 2) * (rank + 1)].reshape((rank + 2, rank + 1, LANES))
    rest = vectors[(2 * rank + 2) * (rank + 1) :]
    passive, x, y, wrong = rest[:rank], rest[rank : 2 * rank], rest[2 * rank : 3 * rank], rest[3 * rank :]
    c0, step = own.ctypes.data + LINE * rank, LINE * (rank + 1)
    p0, x0, y0, w0 = passive.ctypes.data, x.ctypes.data, y.ctypes.data, wrong.ctypes.data
    lanes, unsolved, failed, following = np.full((LANES, 4), NO_ROW), np.empty(count, np.int64), 0, 0
    if Q.ndim == 2:
        for lane in range(LANES):
            own[:, :rank, lane] = Q
    while True:
        following = _fill(lanes, following, start, C, Q, own, passive)
        if lanes[:, ROW].max() == NO_ROW:
            return unsolved[:failed]
        _solve_passive(own, passive, x, y, W)
        _find_wrong(c0, step, p0, x0, y0, w0, rank, 4 * EPS * rank)
        for lane in range(LANES):
            i, found = lanes[lane, ROW], int(wrong[rank, lane])
            if i == NO_ROW:
                continue
            lanes[lane, ROUNDS] += 1
            if found == 0:
                out[i] = x[:, lane]
                lanes[lane, ROW] = NO_ROW
            elif lanes[lane, ROUNDS] == rank + MORE_ROUNDS:
                unsolved[failed] = i
                failed += 1
                lanes[lane, ROW] = NO_ROW
            else:
                _change_sides(lanes[lane], passive[:, lane], wrong[:rank, lane], found)


@jit_inline
def _fill(
    lanes: NDArray[np.int64], following: int, start: Float64, C: Float64, Q: Float64, own: Float64, passive: Float64
) -> int:
    """Assign the next rows to the free lanes; return the first row that is left."""
    count, rank = C.shape
    for lane in range(LANES):
        if lanes[lane, ROW] != NO_ROW or following == count:
            continue
        lanes[lane, ROW], lanes[lane, ROUNDS] = following, 0
        lanes[lane, FEWEST], lanes[lane, PATIENT] = rank + 1, PATIENCE
        for r in range(rank):
            own[r, rank, lane] = C[following, r]
            passive[r, lane] = 1.0 if start[following, r] > 0 else 0.0
        if Q.ndim == 3:
            for r in range(rank):
                for s in range(rank):
                    own[r, s, lane] = Q[following, r, s]
        following += 1
    return following


@jit_inline
def _change_sides(state: NDArray[np.int64], passive: Float64, wrong: Float64, found: int) -> None:
    """Exchange all wrong variables of a lane, or only the last one."""
    all_at_once = found < state[FEWEST] or state[PATIENT] > 0
    state[PATIENT] = PATIENCE if found < state[FEWEST] else state[PATIENT] - 1
    state[FEWEST] = min(state[FEWEST], found)
    for r in range(len(passive) - 1, -1, -1):
        if wrong[r] > 0:
            passive[r] = 1.0 - passive[r]
            if not all_at_once:
                break


def bpp_rows(start: Float64, C: Float64, Q: Float64, out: Float64) -> None:
    """Solve for every row by block principal pivoting, one by one if few of many variables are passive."""
    rank = C.shape[1]
    precompile(Q.ndim)
    if np.count_nonzero(start) * COSTS[Q.ndim] < start.size * (rank - CHEAP):
        bpp_one_by_one(start, C, Q, out)
        return
    unsolved = exchange(start, C, Q, out)
    if len(unsolved):
        found = np.empty((len(unsolved), rank))
        bpp_one_by_one(start[unsolved], C[unsolved], Q if Q.ndim == 2 else Q[unsolved], found)
        out[unsolved] = found


@cache
def precompile(dimensions: int) -> None:
    """Compile the kernels, or load them from the cache, before any row needs them."""
    one, Q = np.ones((1, 1)), np.ones((1,) * dimensions)
    for kernel in (exchange, bpp_one_by_one):
        kernel(one, one, Q, one.copy())
