"""Skinny products equal their definition for every shape, split and rank, with the same bits for any tiling."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import binding, ir

from sparse_ncp.solvers import Settings, solve, synthetic
from sparse_ncp.solvers.machine import vector_bytes
from sparse_ncp.solvers.tensor.gemm import codegen, out_of_core, skinny
from sparse_ncp.solvers.tensor.gemm.blas import BlasGemm
from sparse_ncp.solvers.tensor.gemm.blocks import BlockRegion, Blocks, Split, Tile, block_sizes, region_shape, shifted
from sparse_ncp.solvers.tensor.gemm.out_of_core import stream_tile_regions
from sparse_ncp.solvers.tensor.gemm.protocol import Side
from sparse_ncp.solvers.tensor.gemm.skinny import SkinnyGemm, gemm_for
from sparse_ncp.solvers.tensor.products import LINE, Array, aligned, khatri_rao
from sparse_ncp.solvers.tensor.threads import Threads
from tests.solvers.problems import examples

TOLERANCE = {np.dtype(np.float64): 1e-13, np.dtype(np.float32): 2e-5}


@st.composite
def splits(draw: st.DrawFn) -> tuple[tuple[int, ...], Split]:
    """Shapes of order two to five, one of whose modes may be longer than the kernel's blocks."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    lengths.insert(draw(st.integers(0, len(lengths))), draw(st.integers(1, 400)))
    start = draw(st.integers(0, len(lengths) - 1))
    return tuple(lengths), Split(start, draw(st.integers(start + 1, len(lengths))))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lengths", [(7,), (3, 5), (90, 80, 50), (2, 3, 4, 5)])
def test_a_product_of_rows_is_that_of_one_row_of_each_factor(
    lengths: tuple[int, ...], dtype: type[np.floating[Any]], threads: int
) -> None:
    random = np.random.default_rng(0)
    factors = [random.random((length, 8)).astype(dtype) for length in lengths]
    factors[-1].flags.writeable = False
    with Threads(threads) as pool:
        found = gemm_for(Blocks(np.ones((2, 2), dtype), Split(0, 1)), pool).row_products(factors)
    assert found.dtype == dtype
    assert np.array_equal(found, khatri_rao(factors).T)


def both(blocks: Blocks, threads: int, W: Array, V: Array) -> list[Array]:
    """Compute both products, whole and in parts, and one after the other."""
    with Threads(threads) as pool:
        thin = SkinnyGemm(blocks, pool)
        found = [thin.contract_inner(W), thin.contract_outer(V)]
        sides: list[tuple[Side, Array]] = [("outer", W), ("inner", V)]
        for side, weights in sides if blocks.shape[0] == 1 else sides[:1]:
            parts = list(thin.contracted_parts(weights, side))
            found += [np.concatenate(parts), thin.contract_parts(parts, weights.shape[1], side)]
        return found


@settings(deadline=None, max_examples=examples(60))
@given(
    case=splits(),
    rank=st.integers(1, 70),
    single=st.booleans(),
    slab=st.integers(1, 5000),
    seed=st.integers(0, 99),
)
def test_the_products_are_their_definition_and_no_cut_shows_in_their_bits(
    case: tuple[tuple[int, ...], Split], rank: int, single: bool, slab: int, seed: int
) -> None:
    shape, split = case
    random, dtype = np.random.default_rng(seed), np.dtype(np.float32 if single else np.float64)
    columns = rank + -rank % codegen.unit_of(dtype)
    before, inner, after = block_sizes(shape, split)
    X = random.standard_normal(shape).astype(dtype)
    W = random.random((inner, columns)).astype(dtype)
    V = random.random((before * after, columns)).astype(dtype)
    blocks = Blocks(X, split)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skinny, "SMALL", 0)
        whole = both(blocks, 1, W, V)
        shared = both(blocks, 3, W, V)
        patch.setattr(skinny, "stream_tiles", in_tiles(slab))
        patch.setattr(skinny, "stream_tile_entries", lambda dtype: slab)
        in_pieces = both(blocks, 2, W, V)
    entries = X.reshape(before, inner, after).astype(np.float64)

    def defined(entries: Array) -> list[Array]:
        def across(W: Array) -> Array:
            product: Array = np.einsum("mr,bma->bar", W, entries)
            return product.reshape(-1, columns)

        def along(V: Array) -> Array:
            product: Array = np.einsum("bar,bma->mr", V.reshape(before, after, -1), entries)
            return product

        found = [across(W), along(V), across(W), along(across(W))]
        return found + ([along(V), across(along(V))] if before == 1 else [])

    expected, terms = defined(entries), [product.max() for product in defined(abs(entries))]
    for one, several, cut, definition, size in zip(whole, shared, in_pieces, expected, terms, strict=True):
        assert one.tobytes() == several.tobytes() == cut.tobytes()
        np.testing.assert_allclose(one, definition, rtol=0, atol=TOLERANCE[dtype] * max(size, 1e-30))


def in_tiles(most: int) -> Any:
    """Replace `stream_tiles` by a version for tiles of another size, without a file."""

    def tiles(entries: Array, file: object, whole: BlockRegion) -> Iterator[tuple[Tile, BlockRegion]]:
        for cut in stream_tile_regions(region_shape(whole), most):
            place: Any = tuple(map(shifted, cut, whole))
            yield Tile(place, np.ascontiguousarray(entries[place])), place

    return tiles


@given(shape=st.tuples(st.integers(1, 4), st.integers(1, 100), st.integers(1, 300)), most=st.integers(1, 20_000))
def test_tiles_cover_every_entry_once_and_in_memory_order(shape: tuple[int, int, int], most: int) -> None:
    numbers, seen = np.arange(np.prod(shape)).reshape(shape), []
    for place in stream_tile_regions(shape, most):
        part = numbers[place].ravel()
        assert part.size <= max(most, 2 * out_of_core.ALIGNED_ROWS * max(shape[2], out_of_core.ALIGNED_COLUMNS))
        seen.append(part)
    assert sorted(np.concatenate(seen).tolist()) == list(range(numbers.size))
    assert all(before[0] < after[0] for before, after in pairwise(seen))


def test_blas_takes_over_without_vectors_and_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    X = synthetic.planted((30, 20, 10), 3).tensor
    asked = Settings(rank=5, method="anls-bpp", stop={"max_iterations": 5, "tolerance": 0.0})
    by_kernel = solve(X, asked)
    monkeypatch.setattr(codegen, "VECTOR_BYTES", None)
    with Threads(1) as pool:
        assert isinstance(gemm_for(Blocks(X, Split(0, 1)), pool), BlasGemm)
    by_blas = solve(X, asked)
    for A, B in zip(by_kernel.factors, by_blas.factors, strict=True):
        np.testing.assert_allclose(A, B, rtol=1e-8, atol=1e-10)


def test_the_vectors_are_chosen_by_what_the_processor_has() -> None:
    assert vector_bytes({"avx512f": True, "avx2": True, "fma": True}) == 64
    assert vector_bytes({"avx512f": False, "avx2": True, "fma": True}) == 32
    assert vector_bytes({"neon": True}) == 32
    assert vector_bytes({"avx2": True, "fma": False}) is None
    assert vector_bytes({}) is None


@pytest.mark.parametrize("scalar", [ir.DoubleType(), ir.FloatType()])
@pytest.mark.parametrize("is_along", [True, False])
@pytest.mark.parametrize(("processor", "vector", "register"), [("skylake-avx512", 64, "zmm"), ("haswell", 32, "ymm")])
def test_the_tile_becomes_fused_vector_instructions(
    scalar: Any, is_along: bool, processor: str, vector: int, register: str
) -> None:
    """LLVM verifies the code for other processors too, and the sums of a tile fit into their registers."""
    module = ir.Module()
    pointer, number = scalar.as_pointer(), codegen.I64
    arguments = [pointer, number, pointer, pointer, *[number] * 4, pointer, number]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), "rows")
    builder = ir.IRBuilder(function.append_basic_block())
    codegen.Emitter(builder, scalar, vector, is_along).rows(*function.args)
    builder.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=processor, opt=3)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    lines = machine.emit_assembly(parsed).splitlines()
    fused = [line for line in lines if "vfmadd" in line and register in line]
    assert len(fused) >= 12
    assert not any("call" in line.split() or "callq" in line.split() for line in lines)


@given(shape=st.tuples(st.integers(1, 9), st.integers(1, 9)), dtype=st.sampled_from([np.float32, np.float64]))
def test_weights_for_the_kernel_begin_with_a_cache_line_and_keep_their_values(
    shape: tuple[int, int], dtype: type
) -> None:
    A = np.random.default_rng(0).random(shape)[:, ::-1]
    copy = aligned(A, np.dtype(dtype))
    assert copy.ctypes.data % LINE == 0
    assert copy.flags.c_contiguous
    assert copy.flags.writeable
    np.testing.assert_array_equal(copy, A.astype(dtype))
    assert aligned(copy, np.dtype(dtype)) is copy
