"""Every operation of `TensorLike` agrees with its definition in numpy, for every kind of tensor.

A new kind of tensor is one more entry of `KINDS`: a function that makes it from entries, of which NaN are missing.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from sparse_ncp.solvers import Settings, sweeps
from sparse_ncp.solvers.tensor.exclusion import Exclusion
from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.protocol import TensorLike
from sparse_ncp.solvers.tensor.scaled import ScaledSlices, SliceSums
from sparse_ncp.solvers.tensor.subtensor import Subtensor
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
from sparse_ncp.solvers.tensor.validation import prepare_tensor

SHAPE, RANK = (14, 13, 12), 2
LETTERS = "ijk"
Make: TypeAlias = Callable[[Float64, Threads, Path], TensorLike]


def low_rank_factors() -> list[Float64]:
    random = np.random.default_rng(6)
    return [random.random((length, RANK)) for length in SHAPE]


def planted() -> Float64:
    random = np.random.default_rng(4)
    factors = [random.random((length, RANK)) for length in SHAPE]
    return np.asarray(np.einsum("ir,jr,kr->ijk", *factors) + 0.01 * random.random(SHAPE))


def with_gaps() -> Float64:
    return np.where(np.random.default_rng(5).random(SHAPE) < 0.8, planted(), np.nan)


def in_memory(entries: Float64, pool: Threads, _folder: Path) -> TensorLike:
    return prepare_tensor(entries, None, pool, missing="nan", negative="keep", rank=RANK)


def in_fortran_order(entries: Float64, pool: Threads, folder: Path) -> TensorLike:
    return in_memory(np.asfortranarray(entries), pool, folder)


def memory_mapped(entries: Float64, pool: Threads, folder: Path) -> TensorLike:
    np.save(folder / "X.npy", entries)
    return in_memory(np.load(folder / "X.npy", mmap_mode="r"), pool, folder)


def in_float32(entries: Float64, pool: Threads, folder: Path) -> TensorLike:
    return prepare_tensor(entries, "float32", pool, missing="nan", negative="keep", rank=RANK)


def copied_to_float32(entries: Float64, pool: Threads, folder: Path) -> TensorLike:
    return in_memory(entries, pool, folder).in_single_precision(lambda share: None)


def masked(entries: Float64, pool: Threads, _folder: Path) -> TensorLike:
    filled = np.nan_to_num(entries, nan=7.0)
    return prepare_tensor(filled, None, pool, ~np.isnan(entries), negative="keep", rank=RANK)


def compressed(entries: Float64, pool: Threads, folder: Path) -> TensorLike:
    """Keep 12 vectors of modes of 14 and 13: what is left out is far below the tolerance."""
    low = np.einsum("ir,jr,kr->ijk", *low_rank_factors())
    small = in_memory(low, pool, folder).compress(RANK, lambda share: None, always=True)
    assert small is not None
    entries[...] = low
    return small


def scaled_along_a_mode(entries: Float64, pool: Threads, folder: Path) -> TensorLike:
    tensor = prepare_tensor(entries.copy(), None, pool, missing="nan", negative="keep", rank=RANK)
    scales = np.sqrt(np.random.default_rng(9).integers(1, 4, SHAPE[1]))
    entries *= scales[:, None]
    return ScaledSlices(tensor, 1, scales, SliceSums(tensor, 1))


def left_out_of_a_larger_one(entries: Float64, pool: Threads, _folder: Path) -> TensorLike:
    """Embed the entries between others, which are excluded and would spoil every product."""
    exclusion = Exclusion.of({1: [0, 5], 2: [13], 3: [4, 9, 10]}, (16, 14, 15))
    whole = np.full(exclusion.shape, 1e6)
    whole[::2, ::3] = np.nan
    whole[np.ix_(*exclusion.kept)] = entries
    mask = exclusion.masked(None)
    return Subtensor(prepare_tensor(whole, None, pool, mask, "nan", "keep", RANK, exclusion=exclusion), exclusion)


# How it is made, from which entries, and the relative accuracy of its products.
KINDS: Mapping[str, tuple[Make, Callable[[], Float64], float]] = {
    "in memory": (in_memory, planted, 1e-12),
    "in Fortran order": (in_fortran_order, planted, 1e-12),
    "memory-mapped": (memory_mapped, planted, 1e-12),
    "with negative entries": (in_memory, lambda: planted() - 0.3, 1e-12),
    "float32": (in_float32, planted, 1e-5),
    "copied to float32": (copied_to_float32, planted, 1e-5),
    "NaN": (in_memory, with_gaps, 1e-12),
    "masked": (masked, with_gaps, 1e-12),
    "left out": (left_out_of_a_larger_one, planted, 1e-12),
    "left out with NaN": (left_out_of_a_larger_one, with_gaps, 1e-12),
    "compressed": (compressed, planted, 1e-10),
    "scaled along a mode": (scaled_along_a_mode, planted, 1e-12),
    "scaled, negative": (scaled_along_a_mode, lambda: planted() - 0.3, 1e-12),
    "scaled, NaN": (scaled_along_a_mode, with_gaps, 1e-12),
    "scaled, float32": (scaled_along_a_mode, lambda: planted().astype(np.float32), 2e-5),
}


class Case:
    """A tensor, its entries with NaN where they are missing, and factors in its precision."""

    def __init__(self, kind: str, pool: Threads, folder: Path) -> None:
        make, entries, self.accuracy = KINDS[kind]
        self.entries = entries()
        self.tensor = make(self.entries, pool, folder)
        self.observed = ~np.isnan(self.entries)
        self.zero_filled = np.nan_to_num(self.entries)
        random = np.random.default_rng(7)
        self.factors: list[Array] = [random.random((length, RANK)).astype(self.tensor.dtype) for length in SHAPE]

    def exact_factors(self) -> list[Float64]:
        return [A.astype(np.float64) for A in self.factors]

    def mttkrp(self, mode: int) -> Float64:
        others = [other for other in range(3) if other != mode]
        terms = ",".join(LETTERS[other] + "r" for other in others)
        exact = self.exact_factors()
        return np.asarray(
            np.einsum(f"ijk,{terms}->{LETTERS[mode]}r", self.zero_filled, *(exact[other] for other in others))
        )

    def row_grams(self, mode: int) -> Float64:
        others = [other for other in range(3) if other != mode]
        exact = self.exact_factors()
        left, right = (LETTERS[other] for other in others)
        subscripts = f"ijk,{left}r,{right}r,{left}s,{right}s->{LETTERS[mode]}rs"
        arrays = [exact[other] for other in others]
        return np.asarray(np.einsum(subscripts, self.observed.astype(float), *arrays, *arrays))


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    with Threads(2) as pool, single_threaded_blas():
        yield Case(request.param, pool, tmp_path)


def test_shape_precision_and_norms(case: Case) -> None:
    X = case.tensor
    assert X.shape == SHAPE
    assert X.dtype in (np.float32, np.float64)
    assert X.norm == pytest.approx(np.linalg.norm(case.zero_filled), rel=case.accuracy)
    positive = np.maximum(case.zero_filled, 0)
    assert X.positive.norm == pytest.approx(np.linalg.norm(positive), rel=case.accuracy)
    assert X.positive.sum == pytest.approx(positive.sum(), rel=case.accuracy)
    assert sorted(X.cycle) == [0, 1, 2]


def test_observed_entries_are_counted(case: Case) -> None:
    observed = case.tensor.observed
    if case.observed.all():
        assert (observed.count, observed.counts, observed.constant) == (None, None, (0, 1, 2))
        return
    assert observed.count == case.observed.sum()
    assert observed.counts is not None
    for mode, counts in enumerate(observed.counts):
        others = tuple(other for other in range(3) if other != mode)
        assert np.array_equal(counts, case.observed.sum(axis=others))


@pytest.mark.parametrize("modes", [None, (0, 1, 2), (2, 0), (1,)])
def test_a_sweep_yields_every_mttkrp_with_the_newest_factors(case: Case, modes: tuple[int, ...] | None) -> None:
    X, random = case.tensor, np.random.default_rng(8)
    seen = []
    for mode, M in X.sweep(case.factors, X.first_contraction(case.factors, modes), modes):
        seen.append(mode)
        assert M.dtype == np.float64
        expected = case.mttkrp(mode)
        np.testing.assert_allclose(M, expected, rtol=0, atol=case.accuracy * np.abs(expected).max())
        case.factors[mode] = random.random((SHAPE[mode], RANK)).astype(X.dtype)
    assert tuple(seen) == (modes or tuple(seen))
    assert sorted(seen) == sorted(modes or range(3))


def test_grams_are_those_over_the_observed_entries(case: Case) -> None:
    observed = case.tensor.observed
    grams = observed.grams(case.factors, observed.first_contraction(case.factors, (0, 1, 2)), (0, 1, 2))
    for mode, G in enumerate(grams):
        expected = case.row_grams(mode)
        rows = np.broadcast_to(G.rows, expected.shape)
        np.testing.assert_allclose(rows, expected, rtol=0, atol=case.accuracy * expected.max())
        bound = np.linalg.eigvalsh(G.common - expected).min()
        assert bound >= -case.accuracy * expected.max()
        case.factors[mode] = case.factors[mode][::-1].copy()


def test_overlap_is_the_inner_products_of_components(case: Case) -> None:
    exact = case.exact_factors()
    expected = np.einsum("ijk,ir,jr,kr,is,js,ks->rs", case.observed.astype(float), *exact, *exact)
    np.testing.assert_allclose(case.tensor.observed.overlap(case.factors), expected, rtol=max(1e-9, case.accuracy))


def test_the_squared_residual_is_exact(case: Case) -> None:
    """Take factors in the bases of the compressed tensor, which counts no part of a model outside of them."""
    case.factors = [(1.1 * A).astype(case.tensor.dtype) for A in low_rank_factors()]
    model = np.einsum("ir,jr,kr->ijk", *case.exact_factors())
    expected = float(np.square((case.zero_filled - model)[case.observed]).sum())
    assert case.tensor.squared_residual(case.factors) == pytest.approx(expected, rel=max(1e-9, case.accuracy))


def test_gram_times_is_that_of_the_unfoldings(case: Case) -> None:
    V = {mode: np.random.default_rng(mode).standard_normal((SHAPE[mode], 3)) for mode in (0, 1, 2)}
    if not case.tensor.has_gram_times:
        with pytest.raises(NotImplementedError):
            case.tensor.gram_times(V)
        return
    for mode, found in case.tensor.gram_times(V).items():
        unfolding = np.moveaxis(case.zero_filled, mode, 0).reshape(SHAPE[mode], -1)
        right = unfolding.T @ V[mode]
        atol = case.accuracy * np.square(case.tensor.norm) * 10
        np.testing.assert_allclose(found.product, unfolding @ right, rtol=0, atol=atol)
        np.testing.assert_allclose(found.positive, np.square(np.maximum(right, 0)).sum(axis=0), rtol=0, atol=atol)
        np.testing.assert_allclose(found.negative, np.square(np.minimum(right, 0)).sum(axis=0), rtol=0, atol=atol)


def test_no_factor_is_changed_and_the_bits_repeat(case: Case) -> None:
    X, before = case.tensor, [A.copy() for A in case.factors]
    first, second = ([M for _, M in X.sweep(case.factors, X.first_contraction(case.factors))] for _ in range(2))
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert all(np.array_equal(now, then) for now, then in zip(case.factors, before, strict=True))


def test_a_run_takes_it_in_place_of_an_array(case: Case) -> None:
    settings = Settings(rank=RANK, method="hals", stop={"max_iterations": 5})
    *_, last = sweeps(case.tensor, settings)
    assert last.iteration == 5
    assert [A.shape for A in last.factors] == [(length, RANK) for length in SHAPE]
