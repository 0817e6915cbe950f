"""Compiled operations on whole factors give the bits of the numpy expressions that they replace."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparse_ncp.solvers.kernels.elementwise import extrapolate_factor, squares_and_sums

shapes = st.tuples(st.integers(1, 300), st.integers(2, 45))
precisions = st.sampled_from([np.dtype("f8"), np.dtype("f4")])


@given(shape=shapes, dtype=precisions, weight=st.floats(0, 1), seed=st.integers(0, 1000))
def test_carrying_on_rounds_as_its_formula_does(
    shape: tuple[int, int], dtype: np.dtype[np.floating], weight: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    A, before = (np.maximum(0, random.standard_normal(shape)).astype(dtype) for _ in range(2))
    beyond = np.empty_like(A)
    extrapolate_factor(A, before, dtype.type(weight), beyond)
    assert (beyond == np.maximum(0, A + dtype.type(weight) * (A - before))).all()


@given(shape=shapes, dtype=precisions, seed=st.integers(0, 1000))
def test_columns_are_added_up_row_after_row_in_double_precision(
    shape: tuple[int, int], dtype: np.dtype[np.floating], seed: int
) -> None:
    A = np.random.default_rng(seed).lognormal(sigma=5, size=shape).astype(dtype)
    exact = A.astype(np.float64)
    squares, sums = squares_and_sums(A)
    assert (squares == np.square(exact).sum(axis=0)).all()
    assert (sums == exact.sum(axis=0)).all()
