"""Generate code for products with few columns: out[p] += Σ_k X[p, k] W[k], one tile of rows and columns at a time.

BLAS packs its operands, which pays off if they are used often; with twenty columns it reaches half of the peak of a
core. Here entries are read in place, once for all columns of a tile, whose sums stay in registers. The compiler does
not find this by itself, so the tile is written with vectors in LLVM's intermediate representation.

A row of `out` is summed over blocks of k of equal length, each starting from zero, so that splitting the rows, or k
between blocks, gives the same bits. All is in one file because numba's cache does not notice changes in others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sparse_ncp.solvers.machine import vector_bytes
from sparse_ncp.solvers.tensor.jit import jit
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.scan import Booleans

# Values of k in a block, if entries are contiguous along k and if they are not. A block of W and the rows multiplied
# by it stay in the L1 cache. Processors prefetch from about 32 streams and no more.
ALONG, ACROSS = 128, 24
# Entries of a block of W if they are contiguous along k: with more columns, a block is shorter.
BLOCK_OF_W = 2560
# Columns of W and `out` processed together; more would not leave room for the entries in the cache.
PANEL = 64
# Columns of X multiplied by one block of W, if they are copied first: the copy stays in the same cache.
OBSERVED_COLUMNS = 96
# Half vectors in three vectors. The width of a tile in half vectors selects the code; plus six, with prefetching.
MOST_UNITS = PREFETCHES = 6
I64 = ir.IntType(64)

Value: TypeAlias = Any  # of llvmlite, which is not typed
Origin: TypeAlias = tuple[int, int, int]  # before, inner, after
Places: TypeAlias = tuple[NDArray[np.intp], NDArray[np.intp]]  # of rows before and inner, in a mask


class Cut(NamedTuple):
    """How the work is split; this does not change the bits."""

    tile_rows: Mapping[int, int]  # for tiles of one, two and three vectors
    rows: int  # multiplied by a block of W together
    columns: int  # of X multiplied by the same block


# For vectors of 32 and 64 bytes. A tile and its vectors of W fit into 16 registers, or into 32 long ones.
CUTS = {32: Cut({1: 8, 2: 6, 3: 4}, 12, 192), 64: Cut({1: 12, 2: 8, 3: 6}, 24, 768)}
VECTOR_BYTES = vector_bytes(dict(binding.get_host_cpu_features()))
ROWS, COLUMNS = CUTS[VECTOR_BYTES or 32][1:]


def unit_of(dtype: np.dtype[Any], vector: int | None = None) -> int:
    """Return half the length of a vector; the number of columns is a multiple of it."""
    return (vector or VECTOR_BYTES or 32) // 2 // dtype.itemsize


def block_along(columns: int) -> int:
    """Return the block length for contiguous entries, a power of two that divides `ALONG`."""
    return min(ALONG, 1 << ((BLOCK_OF_W // min(columns, PANEL)).bit_length() - 1))


class Emitter:
    """Emit the product of some rows with a block of W; addresses are integers, steps count entries."""

    def __init__(self, builder: Value, scalar: Value, vector: int, is_along: bool) -> None:
        self.builder, self.scalar, self.is_along = builder, scalar, is_along
        self.item = 4 if isinstance(scalar, ir.FloatType) else 8
        self.lanes = vector // self.item
        self.tile_rows = CUTS[vector].tile_rows

    def rows(self, x: Value, step: Value, W: Value, out: Value, columns: Value, rows: Value, depth: Value,
             units: Value, ahead: Value, ahead_step: Value) -> None:  # fmt: skip
        """Emit `units` half vectors of every row of `out`, up to six; `columns` is the step of W and of `out`.

        The entries needed next are at `ahead`, with a step of their own.
        """
        b = self.builder
        end = b.append_basic_block("done")
        switch = b.switch(units, end)
        for case in range(1, MOST_UNITS + PREFETCHES + 1):
            count, self.prefetches = (case - 1) % MOST_UNITS + 1, case > PREFETCHES
            block = b.append_basic_block(f"units{case}")
            switch.add_case(ir.Constant(I64, case), block)
            b.position_at_end(block)
            widths = [self.lanes] * (count // 2) + [self.lanes // 2] * (count % 2)
            done = ir.Constant(I64, 0)
            for height in dict.fromkeys((self.tile_rows[len(widths)], 2, 1)):
                done = self._tiles(height, widths, done, x, step, W, out, columns, rows, depth, ahead, ahead_step)
            b.branch(end)
        b.position_at_end(end)

    def _tiles(self, height: int, widths: Sequence[int], first: Value, x: Value, step: Value, W: Value, out: Value,
               columns: Value, rows: Value, depth: Value, ahead: Value, ahead_step: Value) -> Value:  # fmt: skip
        """Emit as many tiles of this height as fit below the first row; return the row after them."""
        b = self.builder
        before, loop, after = b.block, b.append_basic_block("tiles"), b.append_basic_block("tiles_done")
        fits = b.icmp_signed("<=", b.add(first, ir.Constant(I64, height)), rows)
        b.cbranch(fits, loop, after)
        b.position_at_end(loop)
        row = b.phi(I64)
        row.add_incoming(first, before)
        offset, ahead_offset = (b.mul(row, step), b.mul(row, ahead_step)) if self.is_along else (row, row)
        place, next_ones = b.gep(out, [b.mul(row, columns)]), b.gep(ahead, [ahead_offset])
        self._tile(height, widths, b.gep(x, [offset]), step, W, place, columns, depth, next_ones, ahead_step)
        following = b.add(row, ir.Constant(I64, height))
        row.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<=", b.add(following, ir.Constant(I64, height)), rows), loop, after)
        last = b.block
        b.position_at_end(after)
        reached = b.phi(I64)
        reached.add_incoming(first, before)
        reached.add_incoming(following, last)
        return reached

    def _tile(self, height: int, widths: Sequence[int], x: Value, step: Value, W: Value, out: Value, columns: Value,
              depth: Value, ahead: Value, ahead_step: Value) -> None:  # fmt: skip
        """Emit the sums of one tile over the block, starting from zero and added to `out`."""
        b = self.builder
        vectors = [ir.VectorType(self.scalar, width) for width in widths]
        offsets = [sum(widths[:place]) for place in range(len(widths))]
        starts = [b.gep(x, [b.mul(step, ir.Constant(I64, m))]) for m in range(height)] if self.is_along else []
        before, loop, after = b.block, b.append_basic_block("k"), b.append_basic_block("k_done")
        b.branch(loop)
        b.position_at_end(loop)
        k, w = b.phi(I64), b.phi(W.type)
        k.add_incoming(ir.Constant(I64, 0), before)
        w.add_incoming(W, before)
        sums = [[b.phi(vector) for vector in vectors] for _ in range(height)]
        for row in sums:
            for total in row:
                total.add_incoming(ir.Constant(total.type, None), before)
        entry = None if self.is_along else b.gep(x, [b.mul(k, step)])
        if self.prefetches and height > 2:
            self._prefetch(k, ahead_step, ahead)
        weights = [self.load(w, offset, vector) for offset, vector in zip(offsets, vectors, strict=True)]
        for m in range(height):
            number = b.load(b.gep(starts[m], [k]) if entry is None else b.gep(entry, [ir.Constant(I64, m)]))
            for place, vector in enumerate(vectors):
                spread = self._broadcast(number, vector)
                name = f"llvm.fma.v{vector.count}f{8 * self.item}"
                fma = self._declared(name, ir.FunctionType(vector, [vector] * 3))
                total = b.call(fma, [spread, weights[place], sums[m][place]])
                sums[m][place].add_incoming(total, loop)
                sums[m][place] = total
        following = b.add(k, ir.Constant(I64, 1))
        k.add_incoming(following, loop)
        w.add_incoming(b.gep(w, [columns]), loop)
        b.cbranch(b.icmp_signed("<", following, depth), loop, after)
        b.position_at_end(after)
        for m in range(height):
            row = b.gep(out, [b.mul(columns, ir.Constant(I64, m))])
            for place, vector in enumerate(vectors):
                address = self._address(row, offsets[place], vector)
                b.store(b.fadd(b.load(address, align=self.item), sums[m][place]), address, align=self.item)

    def _prefetch(self, k: Value, step: Value, ahead: Value) -> None:
        """Emit a prefetch of the next entries: a line of another row in each iteration, or of another k."""
        b = self.builder
        if self.is_along:
            seven, line = ir.Constant(I64, 7), 64 // self.item
            column = b.mul(b.lshr(k, ir.Constant(I64, 3)), ir.Constant(I64, line))
            place = b.gep(ahead, [b.add(b.mul(b.and_(k, seven), step), column)])
        else:
            place = b.gep(ahead, [b.mul(k, step)])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = self._declared("llvm.prefetch.p0", ir.FunctionType(ir.VoidType(), [byte, number, number, number]))
        b.call(
            prefetch, [b.bitcast(place, byte), *(ir.Constant(number, flag) for flag in (0, 3, 1))]
        )  # read, keep, data

    def _declared(self, name: str, kind: Value) -> Value:
        found = self.builder.module.globals.get(name)
        return ir.Function(self.builder.module, kind, name) if found is None else found

    def _broadcast(self, number: Value, vector: Value) -> Value:
        b, first = self.builder, ir.Constant(ir.IntType(32), 0)
        single = b.insert_element(ir.Constant(vector, ir.Undefined), number, first)
        order = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
        return b.shuffle_vector(single, ir.Constant(vector, ir.Undefined), order)

    def _address(self, pointer: Value, offset: int, vector: Value) -> Value:
        return self.builder.bitcast(self.builder.gep(pointer, [ir.Constant(I64, offset)]), vector.as_pointer())

    def load(self, pointer: Value, offset: int, vector: Value) -> Value:
        return self.builder.load(self._address(pointer, offset, vector), align=self.item)


def emit_rows(is_along: bool) -> Callable[..., Any]:
    def code(context: Any, builder: Value, signature: Any, arguments: Sequence[Value]) -> Value:
        scalar = context.get_value_type(signature.args[0])
        pointer = scalar.as_pointer()
        _, x, step, W, out, columns, rows, depth, units, ahead, ahead_step = arguments
        x, W, out, ahead = (builder.inttoptr(address, pointer) for address in (x, W, out, ahead))
        emitter = Emitter(builder, scalar, VECTOR_BYTES or 32, is_along)
        emitter.rows(x, step, W, out, columns, rows, depth, units, ahead, ahead_step)
        return context.get_dummy_value()

    return code


def rows_along(typing, kind, x, step, W, out, columns, rows, depth, units, ahead, ahead_step):  # type: ignore[no-untyped-def]
    return types.void(kind, *(types.int64,) * 10), emit_rows(is_along=True)


def rows_across(typing, kind, x, step, W, out, columns, rows, depth, units, ahead, ahead_step):  # type: ignore[no-untyped-def]
    return types.void(kind, *(types.int64,) * 10), emit_rows(is_along=False)


_rows_along: Any = intrinsic(rows_along)
_rows_across: Any = intrinsic(rows_across)


@jit
def _next_units(units: int) -> int:
    """Return how many half vectors to take at once: three vectors or two, so that no single one is left over."""
    vectors = (units + 1) // 2
    taken = 2 if vectors in (2, 4) else min(3, vectors)
    return min(units, 2 * taken)


@jit
def sum_along(
    x: int, rows: int, step: int, depth: int, blocks: int, block_step: int, W: Array, begin: int, W_step: int,
    length: int, unit: int, out: Array,
) -> None:  # fmt: skip
    """out[p] += Σ_b Σ_k X[b, p, k] W[begin + b · W_step + k], for entries at address x, contiguous along k."""
    columns, item = out.shape[1], out.itemsize
    zero, w0, o0 = out.dtype.type(0), W.ctypes.data, out.ctypes.data
    for panel in range(0, columns, PANEL):
        for b in range(blocks):
            for k in range(0, depth, length):
                now = min(length, depth - k)
                for p in range(0, rows, ROWS):
                    few = min(ROWS, rows - p)
                    entries = x + (b * block_step + p * step + k) * item
                    weights = w0 + ((begin + b * W_step + k) * columns + panel) * item
                    place = o0 + (p * columns + panel) * item
                    ahead = entries + few * step * item
                    left, first = min(PANEL, columns - panel) // unit, PREFETCHES
                    while left > 0:
                        units = _next_units(left)
                        _rows_along(zero, entries, step, weights, place, columns, few, now, units + first, ahead, step)
                        left, first = left - units, 0
                        weights += units * unit * item
                        place += units * unit * item


@jit
def sum_across(
    x: int, rows: int, step: int, depth: int, blocks: int, block_step: int, W: Array, begin: int, unit: int,
    out: Array, out_begin: int, out_step: int,
) -> None:  # fmt: skip
    """out[out_begin + b · out_step + p] += Σ_k X[b, k, p] W[begin + k], for entries at x, contiguous along p."""
    columns, item = out.shape[1], out.itemsize
    zero, w0, o0 = out.dtype.type(0), W.ctypes.data, out.ctypes.data
    for panel in range(0, columns, PANEL):
        for b in range(blocks):
            for strip in range(0, rows, COLUMNS):
                end = min(rows, strip + COLUMNS)
                for k in range(0, depth, ACROSS):
                    now = min(ACROSS, depth - k)
                    for p in range(strip, end, ROWS):
                        few = min(ROWS, rows - p)
                        entries = x + (b * block_step + k * step + p) * item
                        weights = w0 + ((begin + k) * columns + panel) * item
                        place = o0 + ((out_begin + b * out_step + p) * columns + panel) * item
                        ahead = entries + few * item
                        if p + few == end:  # then the first ones of the strip at the next k
                            ahead = x + (b * block_step + (k + now) * step + strip) * item
                        left, first = min(PANEL, columns - panel) // unit, PREFETCHES
                        while left > 0:
                            units = _next_units(left)
                            _rows_across(
                                zero, entries, step, weights, place, columns, few, now, units + first, ahead, step
                            )
                            left, first = left - units, 0
                            weights += units * unit * item
                            place += units * unit * item


def copy_vectors(typing, kind, x, step, out, out_step, rows, vectors):  # type: ignore[no-untyped-def]
    def emit(context: Any, builder: Value, signature: Any, arguments: Sequence[Value]) -> Value:
        """Emit a copy of rows of whole vectors, with zeros in place of NaN."""
        b, scalar = builder, context.get_value_type(signature.args[0])
        emitter, zero = Emitter(b, scalar, VECTOR_BYTES or 32, is_along=True), ir.Constant(I64, 0)
        vector = ir.VectorType(scalar, emitter.lanes)
        _, x, step, out, out_step, rows, vectors = arguments
        x, out = (b.inttoptr(address, scalar.as_pointer()) for address in (x, out))
        both = b.mul(rows, vectors)
        before, outer = b.block, b.append_basic_block("row")
        inner, after = b.append_basic_block("copy"), b.append_basic_block("copied")
        b.cbranch(b.icmp_signed(">", both, zero), outer, after)
        b.position_at_end(outer)
        row = b.phi(I64)
        row.add_incoming(zero, before)
        source, target = b.gep(x, [b.mul(row, step)]), b.gep(out, [b.mul(row, out_step)])
        next_row = b.add(row, ir.Constant(I64, 1))
        b.branch(inner)
        b.position_at_end(inner)
        turn = b.phi(I64)
        turn.add_incoming(zero, outer)
        offset = b.mul(turn, ir.Constant(I64, emitter.lanes))
        entries = emitter.load(b.gep(source, [offset]), 0, vector)
        observed = b.select(b.fcmp_ordered("ord", entries, entries), entries, ir.Constant(vector, None))
        b.store(observed, b.bitcast(b.gep(target, [offset]), vector.as_pointer()), align=emitter.item)
        following = b.add(turn, ir.Constant(I64, 1))
        turn.add_incoming(following, inner)
        row_done = b.append_basic_block("row_done")
        b.cbranch(b.icmp_signed("<", following, vectors), inner, row_done)
        b.position_at_end(row_done)
        row.add_incoming(next_row, row_done)
        b.cbranch(b.icmp_signed("<", next_row, rows), outer, after)
        b.position_at_end(after)
        return context.get_dummy_value()

    return types.void(kind, *(types.int64,) * 6), emit


_copy_vectors: Any = intrinsic(copy_vectors)


@jit
def _copy_observed(
    X: Array, origin: Origin, place: Origin, rows: int, count: int, observed: Booleans, places: Places, unit: int,
    tile: Array,
) -> None:  # fmt: skip
    """Copy rows of entries from an origin in X, with zeros for NaN and for entries not observed in the tensor."""
    b, i, a = origin
    zero, step, vectors = tile.dtype.type(0), X.shape[2], count // (2 * unit)
    x = X.ctypes.data + ((b * X.shape[1] + i) * step + a) * X.itemsize
    _copy_vectors(zero, x, step, tile.ctypes.data, tile.shape[1], rows, vectors)
    for row in range(rows):
        for c in range(2 * unit * vectors, count):
            tile[row, c] = zero if np.isnan(X[b, i + row, a + c]) else X[b, i + row, a + c]
    if observed.size > 1 or not observed[0, 0, 0]:
        for row in range(rows):
            some = observed[places[0][place[0]], places[1][place[1] + row]]
            for c in range(count):
                if not some[place[2] + c if len(some) > 1 else 0]:
                    tile[row, c] = zero


@jit
def sum_observed_along(
    X: Array, origin: Origin, place: Origin, rows: int, depth: int, blocks: int, observed: Booleans, places: Places,
    W: Array, begin: int, W_step: int, length: int, unit: int, out: Array,
) -> None:  # fmt: skip
    """Like `sum_along`, for a region of X at a given place of the tensor, over the observed entries."""
    columns, item = out.shape[1], out.itemsize
    tile, step = np.empty((ROWS, ALONG), out.dtype), X.shape[2]
    x0 = X.ctypes.data + ((origin[0] * X.shape[1] + origin[1]) * step + origin[2]) * item
    zero, w0, o0, t0 = out.dtype.type(0), W.ctypes.data, out.ctypes.data, tile.ctypes.data
    for panel in range(0, columns, PANEL):
        for b in range(blocks):
            for k in range(0, depth, length):
                now = min(length, depth - k)
                for p in range(0, rows, ROWS):
                    few = min(ROWS, rows - p)
                    here = origin[0] + b, origin[1] + p, origin[2] + k
                    there = place[0] + b, place[1] + p, place[2] + k
                    _copy_observed(X, here, there, few, now, observed, places, unit, tile)
                    weights = w0 + ((begin + b * W_step + k) * columns + panel) * item
                    target = o0 + (p * columns + panel) * item
                    ahead = x0 + (b * X.shape[1] * step + (p + few) * step + k) * item
                    left, prefetches = min(PANEL, columns - panel) // unit, PREFETCHES
                    while left > 0:
                        units = _next_units(left)
                        _rows_along(
                            zero, t0, ALONG, weights, target, columns, few, now, units + prefetches, ahead, step
                        )
                        left, prefetches = left - units, 0
                        weights += units * unit * item
                        target += units * unit * item


@jit
def sum_observed_across(
    X: Array, origin: Origin, place: Origin, rows: int, depth: int, blocks: int, observed: Booleans, places: Places,
    W: Array, begin: int, unit: int, out: Array, out_begin: int, out_step: int,
) -> None:  # fmt: skip
    """Like `sum_across`, for a region of X at a given place of the tensor, over the observed entries."""
    columns, item = out.shape[1], out.itemsize
    tile, step = np.empty((ACROSS, OBSERVED_COLUMNS), out.dtype), X.shape[2]
    x0 = X.ctypes.data + ((origin[0] * X.shape[1] + origin[1]) * step + origin[2]) * item
    zero, w0, o0, t0 = out.dtype.type(0), W.ctypes.data, out.ctypes.data, tile.ctypes.data
    for panel in range(0, columns, PANEL):
        for b in range(blocks):
            for strip in range(0, rows, OBSERVED_COLUMNS):
                wide = min(OBSERVED_COLUMNS, rows - strip)
                for k in range(0, depth, ACROSS):
                    now = min(ACROSS, depth - k)
                    here = origin[0] + b, origin[1] + k, origin[2] + strip
                    there = place[0] + b, place[1] + k, place[2] + strip
                    _copy_observed(X, here, there, now, wide, observed, places, unit, tile)
                    for p in range(0, wide, ROWS):
                        few = min(ROWS, wide - p)
                        weights = w0 + ((begin + k) * columns + panel) * item
                        target = o0 + ((out_begin + b * out_step + strip + p) * columns + panel) * item
                        ahead = x0 + (b * X.shape[1] * step + (k + now) * step + strip + p) * item
                        left, prefetches = min(PANEL, columns - panel) // unit, PREFETCHES
                        while left > 0:
                            units = _next_units(left)
                            _rows_across(
                                zero, t0 + p * item, OBSERVED_COLUMNS, weights, target, columns, few, now,
                                units + prefetches, ahead, step,
                            )  # fmt: skip
                            left, prefetches = left - units, 0
                            weights += units * unit * item
                            target += units * unit * item


def precompile(dtype: np.dtype[Any]) -> None:
    """Compile the kernels, or load them from the cache, so that no sweep is delayed by it."""
    nothing = np.zeros((0, 1), dtype)
    sum_along(0, 0, 0, 0, 0, 0, nothing, 0, 0, ALONG, 1, nothing)
    sum_across(0, 0, 0, 0, 0, 0, nothing, 0, 1, nothing, 0, 0)
