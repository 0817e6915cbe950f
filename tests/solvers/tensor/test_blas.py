"""Both large products equal their definition for every shape and split, with the same bits for any threads."""

import contextlib
import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_ncp.solvers.tensor.gemm import blas, blocks
from sparse_ncp.solvers.tensor.gemm.blas import BlasGemm, piece_count
from sparse_ncp.solvers.tensor.gemm.blocks import Blocks, Split, best_split
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.tensor.validation import prepare_tensor
from tests.solvers.literal import model, mttkrp

# 9 × 4260 × 42 in small, and of order four.
MIDDLE = [(9, 2000, 32), (9, 2, 2000, 32)]


@contextlib.contextmanager
def small_pieces() -> Iterator[None]:
    """Split products of a few entries as if they were large."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SMALL", 0), ("PIECE", 4), ("NARROW", 2)):
            patch.setattr(blas, name, value)
        patch.setattr(blocks, "NARROW", 2)
        yield


@st.composite
def splits(draw: st.DrawFn) -> tuple[tuple[int, ...], Split]:
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=2, max_size=5)))
    start = draw(st.integers(0, len(shape) - 1))
    stop = draw(st.integers(start + 1, len(shape)))
    return shape, Split(start, stop)


@settings(deadline=None)
@given(split=splits(), rank=st.integers(1, 4), threads=st.integers(2, 4), seed=st.integers(0, 99))
def test_a_product_in_pieces_is_the_product(
    split: tuple[tuple[int, ...], Split], rank: int, threads: int, seed: int
) -> None:
    shape, cut = split
    random = np.random.default_rng(seed)
    X = random.random(shape)
    blocks = X.reshape(math.prod(shape[: cut.start]), math.prod(shape[slice(*cut)]), -1)
    before, inner, after = blocks.shape
    W, V = random.random((inner, rank)), random.random((before, after, rank))
    outcomes = []
    for count in (1, threads):
        with Threads(count) as pool, small_pieces():
            both = BlasGemm(Blocks(X, cut), pool)
            outcomes.append((both.contract_inner(W), both.contract_outer(V.reshape(-1, rank))))
    expected = np.einsum("mr,bma->bar", W, blocks).reshape(-1, rank), np.einsum("bar,bma->mr", V, blocks)
    for one, several, definition in zip(*outcomes, expected, strict=True):
        assert one.tobytes() == several.tobytes()
        np.testing.assert_allclose(one, definition, rtol=1e-12)


@given(size=st.integers(1, 10**9))
def test_the_number_of_pieces_is_a_power_of_two(size: int) -> None:
    assert piece_count(size) in {1, 2, 4, 8, 16}


def test_a_long_run_of_modes_in_the_middle_is_cut_out() -> None:
    assert best_split((9, 4260, 42)) == Split(1, 2)
    assert best_split((9, 2, 2000, 32)) == Split(2, 3)
    for shape, stop in (((1000, 100, 100), 1), ((1000, 100, 100, 5), 1), ((9, 71, 60, 42), 2), ((30, 20), 1)):
        assert best_split(shape) == Split(0, stop)


@pytest.mark.parametrize("shape", MIDDLE)
@pytest.mark.parametrize("order", ["C", "F"])
def test_sweep_after_sweep_gives_the_mttkrps_of_the_freshest_factors(
    shape: tuple[int, ...], order: Literal["C", "F"]
) -> None:
    """The last contraction is reused by the next sweep unless a factor was replaced in between."""
    random = np.random.default_rng(0)
    shape = shape if order == "C" else shape[::-1]
    X = np.asarray(random.random(shape), order=order)
    factors = [random.random((length, 3)) for length in shape]
    with Threads(2) as pool:
        tensor = prepare_tensor(X, None, pool)
        for replaced in (None, 0, 1, len(shape) - 1):
            if replaced is not None:
                factors[replaced] = random.random(factors[replaced].shape)
            fresh = prepare_tensor(X, None, pool).first_contraction(factors)
            assert tensor.first_contraction(factors).array.tobytes() == fresh.array.tobytes()
            for mode, M in tensor.sweep(factors, tensor.first_contraction(factors)):
                np.testing.assert_allclose(M, mttkrp(X, factors, mode), rtol=1e-11)
                factors[mode] = random.random(factors[mode].shape)
        assert tensor.squared_residual(factors) == pytest.approx(np.sum((X - model(factors)) ** 2), rel=1e-12)
