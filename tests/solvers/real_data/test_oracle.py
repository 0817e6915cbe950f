"""Products and Grams over the observed entries, against their definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_ncp.solvers.tensor.dense import Tensor
from sparse_ncp.solvers.tensor.gemm import blas, skinny
from sparse_ncp.solvers.tensor.gemm.blas import BlasGemm
from sparse_ncp.solvers.tensor.gemm.blocks import Blocks, Split, block_sizes
from sparse_ncp.solvers.tensor.gemm.skinny import gemm_for
from sparse_ncp.solvers.tensor.missing import bits, masked
from sparse_ncp.solvers.tensor.missing import grams as grams_module
from sparse_ncp.solvers.tensor.missing import pattern as pattern_module
from sparse_ncp.solvers.tensor.missing.bits import BitGemm
from sparse_ncp.solvers.tensor.missing.gemm import gemm_over_observed
from sparse_ncp.solvers.tensor.missing.masked import Mask, MaskedBlocks
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.tensor.validation import prepare_tensor
from tests.solvers.problems import SHAPES, Layout, start
from tests.solvers.real_data.patterns import PATTERNS, holed, missing_in, model, mttkrp, row_grams

LAYOUTS = [np.ascontiguousarray, np.asfortranarray]
# Of a sum of a few thousand products in double precision.
ROUNDING = 1e-12
TOLERANCE = {"f8": ROUNDING, "f4": 2e-5}


def in_rows(G: Array, length: int) -> Array:
    return np.broadcast_to(G, (length, *G.shape[-2:]))


def prepared(X: Array, pool: Threads, rank: int = 3) -> Tensor:
    return prepare_tensor(X, None, pool, missing="nan", rank=rank)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", SHAPES)
@pytest.mark.parametrize("name", PATTERNS)
def test_every_product_and_gram_is_over_the_observed_entries(name: str, order: int, layout: Layout) -> None:
    shape = SHAPES[order]
    missing = missing_in(name, shape)
    X = np.random.default_rng(1).random(shape)
    factors, later = start(shape, 3), start(shape, 3, seed=9)
    with Threads(2) as pool:
        tensor = prepared(holed(layout(X), missing), pool)
        first = tensor.observed.first_contraction(factors)
        products = tensor.sweep(factors, tensor.first_contraction(factors))
        for (mode, M), G in zip(products, tensor.observed.grams(factors, first), strict=False):
            np.testing.assert_allclose(M, mttkrp(np.where(missing, 0, X), factors, mode), rtol=ROUNDING)
            expected = row_grams(~missing, factors, mode)
            np.testing.assert_allclose(in_rows(G.rows, shape[mode]), expected, rtol=ROUNDING, atol=ROUNDING)
            assert (np.linalg.eigvalsh(G.common - expected) > -1e-9).all()
            factors[mode] = later[mode]
        squares = np.square(X - model(factors))[~missing].sum()
        np.testing.assert_allclose(tensor.squared_residual(factors), squares, rtol=ROUNDING)
        np.testing.assert_allclose(tensor.norm, np.linalg.norm(X[~missing]), rtol=ROUNDING)


@pytest.mark.parametrize("modes", [(0,), (1,), (2,), (0, 2), (1, 2)])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_sweep_over_some_modes_has_their_products_and_grams(name: str, modes: tuple[int, ...]) -> None:
    shape = SHAPES[3]
    missing = missing_in(name, shape)
    X = np.random.default_rng(1).random(shape)
    factors, later = start(shape, 3), start(shape, 3, seed=9)
    with Threads(1) as pool:
        tensor = prepared(holed(X, missing), pool)
        products = tensor.sweep(factors, tensor.first_contraction(factors, modes), modes)
        grams = tensor.observed.grams(factors, tensor.observed.first_contraction(factors, modes), modes)
        swept = []
        for (mode, M), G in zip(products, grams, strict=False):
            swept.append(mode)
            np.testing.assert_allclose(M, mttkrp(np.where(missing, 0, X), factors, mode), rtol=ROUNDING)
            expected = row_grams(~missing, factors, mode)
            np.testing.assert_allclose(in_rows(G.rows, shape[mode]), expected, rtol=ROUNDING, atol=ROUNDING)
            factors[mode] = later[mode]
    assert tuple(swept) == modes


@pytest.mark.parametrize("name", PATTERNS)
def test_new_components_meet_the_others_in_observed_entries_only(name: str) -> None:
    shape = SHAPES[4]
    missing = missing_in(name, shape)
    others, factors, later = start(shape, 2), start(shape, 3, seed=5), start(shape, 3, seed=9)
    with Threads(1) as pool:
        observed = prepared(holed(np.ones(shape), missing), pool).observed
        np.testing.assert_allclose(
            observed.overlap(factors),
            [
                [
                    (~missing * model([A[:, [r]] for A in factors]) * model([A[:, [s]] for A in factors])).sum()
                    for s in range(3)
                ]
                for r in range(3)
            ],
            rtol=ROUNDING,
        )
        for mode, (cross, own) in enumerate(observed.cross_grams(others, factors)):
            both = [np.hstack(columns) for columns in zip(others, factors, strict=True)]
            expected = row_grams(~missing, [np.asarray(A) for A in both], mode)
            np.testing.assert_allclose(in_rows(cross, shape[mode]), expected[:, :2, 2:], rtol=ROUNDING, atol=ROUNDING)
            np.testing.assert_allclose(in_rows(own, shape[mode]), expected[:, 2:, 2:], rtol=ROUNDING, atol=ROUNDING)
            factors[mode] = later[mode]


def test_a_band_is_kept_along_its_own_modes_and_exceptions_in_a_list() -> None:
    shape = (30, 12, 10)
    missing = missing_in("band", shape)
    few = missing.copy()
    few[3, 4, 5] = few[7, 1, 2] = True
    exceptions = int(few.sum() - missing.sum())
    with Threads(1) as pool:
        shared = prepared(holed(np.ones(shape), missing), pool).observed
        mixed = prepared(holed(np.ones(shape), few), pool).observed
        assert isinstance(shared, grams_module.RowGrams)
        assert isinstance(mixed, grams_module.RowGrams)
        assert (shared.pattern.shared, shared.constant, len(shared.pattern.listed)) == ((0,), (0,), 0)
        assert (mixed.pattern.shared, mixed.constant, len(mixed.pattern.listed)) == ((0,), (), exceptions)


@pytest.mark.parametrize("name", ["band", "fibres", "few", "band and few"])
def test_every_way_to_the_grams_leads_to_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (9, 8, 7)
    X, factors = holed(np.ones(shape), missing_in(name, shape)), start(shape, 3)
    with Threads(1) as pool:
        cheapest = [G.rows for G in prepared(X, pool).observed.grams(factors, None)]
        monkeypatch.setattr(pattern_module, "_shared_patterns", lambda along: iter(()))
        general = prepared(X, pool).observed
        assert isinstance(general, grams_module.RowGrams)
        assert general.pattern.missing is None
        for mode, (G, expected) in enumerate(zip(cheapest, general.grams(factors, None), strict=True)):
            np.testing.assert_allclose(in_rows(G, shape[mode]), expected.rows, rtol=ROUNDING, atol=ROUNDING)


def test_a_row_that_loses_nearly_all_of_a_component_is_summed_directly() -> None:
    """A component with one large entry, which is missing for row 3: what is left is 1e-14 of the whole."""
    shape = (20, 15, 12)
    missing = np.zeros(shape, bool)
    missing[3, 2, 1] = True
    factors = [np.full((length, 2), 1e-4) for length in shape]
    factors[1][2, 0] = factors[2][1, 0] = 1e3
    with Threads(1) as pool:
        observed = prepared(holed(np.ones(shape), missing), pool).observed
        assert isinstance(observed, grams_module.RowGrams)
        assert len(observed.pattern.listed) == 1
        G = next(observed.grams(factors, None)).rows
    np.testing.assert_allclose(G, row_grams(~missing, list(factors), 0), rtol=ROUNDING)


@st.composite
def masked_tensors(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], Split]:
    """The shape of a tensor, that of a mask with length 1 along some modes, and a split."""
    shape = tuple(
        draw(st.lists(st.integers(1, 6), min_size=2, max_size=5) | st.tuples(st.integers(1, 90), st.integers(1, 90)))
    )
    mask = tuple(length if draw(st.booleans()) else 1 for length in shape)
    start_mode = draw(st.integers(0, len(shape) - 1))
    stop = draw(st.integers(start_mode + 1, len(shape)))
    return shape, mask, Split(start_mode, stop)


@settings(deadline=None)
@given(case=masked_tensors(), tile=st.integers(8, 40), row=st.integers(1, 8), seed=st.integers(0, 9))
def test_tiles_of_any_size_give_the_products_of_the_observed_entries(
    case: tuple[tuple[int, ...], tuple[int, ...], Split], tile: int, row: int, seed: int
) -> None:
    shape, mask_shape, split = case
    random = np.random.default_rng(seed)
    X, given_mask = random.random(shape), random.random(mask_shape) < 0.7
    X[random.random(shape) < 0.2] = np.nan
    observed = ~np.isnan(X) & given_mask
    sizes = block_sizes(shape, split)
    entries = np.where(observed, X, 0.0).reshape(sizes)
    before, inner, after = sizes
    W, V = random.random((inner, 3)), random.random((before, after, 3))
    outcomes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masked, "TILE", tile)
        patch.setattr(masked, "SHORT_ROW", row)
        patch.setattr(masked, "LONG_ROW", row)
        patch.setattr(blas, "SMALL", 4)
        patch.setattr(blas, "PIECE", 8)
        for threads in (1, 3):
            with Threads(threads) as pool:
                blocks = MaskedBlocks(Mask(X, given_mask), split)
                product = BlasGemm(blocks, pool)
                outcomes.append((product.contract_inner(W), product.contract_outer(V.reshape(-1, 3))))
        place = (slice(None),) * 3
        np.testing.assert_array_equal(blocks.read(place), entries)
        seen = observed.reshape(sizes)
        np.testing.assert_allclose(blocks.residual(place, X, entries + 1), -1.0 * seen, atol=ROUNDING)
    definition = np.einsum("mr,bma->bar", W, entries).reshape(-1, 3), np.einsum("bar,bma->mr", V, entries)
    for one, several, expected in zip(*outcomes, definition, strict=True):
        assert one.tobytes() == several.tobytes()
        np.testing.assert_allclose(one, expected, rtol=ROUNDING, atol=ROUNDING)


@settings(deadline=None)
@given(
    case=masked_tensors(),
    columns=st.integers(1, 40),
    counts=st.booleans(),
    dtype=st.sampled_from(["f8", "f4"]),
    seed=st.integers(0, 9),
)
def test_products_over_observed_entries_are_those_of_the_tensor_with_zeros_for_any_number_of_threads(
    case: tuple[tuple[int, ...], tuple[int, ...], Split], columns: int, counts: bool, dtype: str, seed: int
) -> None:
    """Equal to the bit with the skinny kernel; within rounding over ones and zeros, from tables of sums."""
    shape, mask_shape, split = case
    random = np.random.default_rng(seed)
    X, given_mask = random.random(shape).astype(dtype), random.random(mask_shape) < 0.7
    X[random.random(shape) < 0.2] = np.nan
    mask, observed = Mask(X, given_mask), ~np.isnan(X) & given_mask
    before, inner, after = block_sizes(shape, split)
    outcomes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skinny, "SMALL", 4)
        patch.setattr(bits, "SMALL", 4)
        patch.setattr(bits, "PACKED", 8)
        patch.setattr(bits, "ROWS", 3)
        for threads in (1, 3):
            with Threads(threads) as pool:
                filled = np.where(observed, 1.0 if counts else X, 0.0).astype(X.dtype)
                zeros = gemm_for(Blocks(filled, split), pool)
                gaps = BitGemm(mask, split, pool) if counts else gemm_over_observed(MaskedBlocks(mask, split), pool)
                width = columns + -columns % zeros.unit
                W = np.linspace(0, 1, inner * width).reshape(inner, width).astype(zeros.dtype)
                V = np.linspace(1, 2, before * after * width).reshape(-1, width).astype(zeros.dtype)
                expected = zeros.contract_inner(W), zeros.contract_outer(V)
                outcomes.append((gaps.contract_inner(W), gaps.contract_outer(V)))
    for one, several, product in zip(*outcomes, expected, strict=True):
        assert one.tobytes() == several.tobytes()
        if counts:
            np.testing.assert_allclose(one, product, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        else:
            assert one.tobytes() == product.tobytes()
