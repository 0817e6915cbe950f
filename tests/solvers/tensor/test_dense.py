"""The dimension tree gives each MTTKRP by definition, with the latest factors and without copying the tensor."""

import tracemalloc
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_ncp.solvers import Settings, estimate_memory, solve, synthetic
from sparse_ncp.solvers.tensor import products
from sparse_ncp.solvers.tensor.gemm.blas import BlasGemm
from sparse_ncp.solvers.tensor.gemm.codegen import VECTOR_BYTES
from sparse_ncp.solvers.tensor.gemm.protocol import Gemm
from sparse_ncp.solvers.tensor.gemm.skinny import SkinnyGemm
from sparse_ncp.solvers.tensor.missing.grams import CompleteGrams
from sparse_ncp.solvers.tensor.products import Array, KhatriRao, gram, khatri_rao
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.tensor.validation import prepare_tensor
from tests.solvers.literal import model, mttkrp
from tests.solvers.problems import Layout, run

shapes = st.lists(st.integers(1, 6), min_size=2, max_size=8).map(tuple)

# Without vectors, products are left to BLAS.
GEMM: Any = SkinnyGemm if VECTOR_BYTES is not None else BlasGemm


@given(shape=shapes, rank=st.integers(1, 4), order=st.sampled_from("CF"), seed=st.integers(0, 99))
def test_a_sweep_yields_every_modes_mttkrp_in_turn(
    shape: tuple[int, ...], rank: int, order: Literal["C", "F"], seed: int
) -> None:
    random = np.random.default_rng(seed)
    X = np.asarray(random.random(shape), order=order)
    X.flat[0] = 1.0
    factors = [random.random((length, rank)) for length in shape]
    with Threads(1) as threads:
        tensor = prepare_tensor(X, None, threads)
        modes = []
        for mode, M in tensor.sweep(factors, tensor.first_contraction(factors)):
            modes.append(mode)
            np.testing.assert_allclose(M, mttkrp(X, factors, mode), rtol=1e-12)
            factors[mode] = random.random(factors[mode].shape)  # the next mode must see this
        assert modes == list(range(len(shape)))
        expected = np.sum((X - model(factors)) ** 2)
        assert tensor.squared_residual(factors) == pytest.approx(expected, rel=1e-12)


def test_grams_of_the_sweep_before_serve_only_for_the_very_same_factors() -> None:
    random = np.random.default_rng(0)
    factors = [random.random((length, 3)) for length in (4, 5, 6)]
    kept = CompleteGrams(3)
    for changed in (None, 2, 0, None, 1):
        if changed is not None:
            factors[changed] = random.random(factors[changed].shape)
        found = []
        for mode, G in enumerate(kept.grams(factors, None)):
            expected = np.multiply.reduce([gram(A) for other, A in enumerate(factors) if other != mode])
            assert np.array_equal(G.rows, expected)
            found.append(G)
            if mode == changed:
                factors[mode] = random.random(factors[mode].shape)
        assert len(found) == 3


# Both sides of every decision on how to cut: long and short first modes, narrow and wide products, many components.
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4), data=st.data())
def test_columns_of_a_khatri_rao_product_need_not_all_be_formed(lengths: list[int], data: st.DataObject) -> None:
    factors = [np.random.default_rng(length).random((length, 3)) for length in lengths]
    whole = khatri_rao(factors)
    start = data.draw(st.integers(0, whole.shape[1] - 1))
    columns = slice(start, data.draw(st.integers(start + 1, whole.shape[1])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "HELD", 0)
        parts = KhatriRao(factors)
    assert parts.length == whole.shape[1]
    np.testing.assert_allclose(parts[columns], whole[:, columns], rtol=1e-15)


def test_the_residual_of_a_tensor_with_a_long_middle_mode_holds_no_large_product() -> None:
    X = np.random.default_rng(0).random((20, 20_000, 20))
    factors = [np.random.default_rng(mode).random((length, 40)) for mode, length in enumerate(X.shape)]
    expected = np.sum((X - model(factors)) ** 2)
    with Threads(2) as threads:
        tensor = prepare_tensor(X, None, threads)
        tracemalloc.start()
        assert tensor.squared_residual(factors) == pytest.approx(expected, rel=1e-12)
        assert tracemalloc.get_traced_memory()[1] < X.nbytes  # half of the Khatri-Rao product
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(2000, 40), (40, 2000), (3, 900, 30), (900, 3, 30), (70, 60, 50), (20, 20, 20, 20)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_large_products_cut_into_pieces_are_the_same_products(shape: tuple[int, ...], order: Literal["C", "F"]) -> None:
    random = np.random.default_rng(0)
    X = np.asarray(random.random(shape), order=order)
    factors = [random.random((length, 6)) for length in shape]
    with Threads(2) as threads:
        tensor = prepare_tensor(X, None, threads)
        for mode, M in tensor.sweep(factors, tensor.first_contraction(factors)):
            np.testing.assert_allclose(M, mttkrp(X, factors, mode), rtol=1e-11)
        assert tensor.squared_residual(factors) == pytest.approx(np.sum((X - model(factors)) ** 2), rel=1e-12)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (np.asfortranarray, "Fortran order"),
        (lambda X: X.astype(">f8"), "big-endian"),
        (lambda X: np.repeat(X, 2, axis=1)[:, ::2], "a strided view"),
        (lambda X: X.transpose(2, 0, 1).copy().transpose(1, 2, 0), "permuted in memory"),
        (lambda X: np.frombuffer(X.tobytes()).reshape(X.shape), "read-only"),
    ],
)
@pytest.mark.parametrize("method", ["hals", "anls-bpp"])
def test_the_layout_of_the_tensor_does_not_matter(method: str, form: Layout, kind: str) -> None:
    X = np.random.default_rng(1).random((9, 8, 7))
    expected, got = run(X, method=method), run(form(X), method=method)
    assert got.objective == pytest.approx(expected.objective, rel=1e-9), kind


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", ">i4", "float16", "float32", "float64"])
def test_every_real_type_is_decomposed_in_its_precision(dtype: str) -> None:
    X = np.random.default_rng(2).integers(0, 2, (6, 5, 4)).astype(dtype)
    result = run(X, method="hals", iterations=30)
    narrow = np.dtype(dtype).kind == "f" and np.dtype(dtype).itemsize <= 4
    assert {A.dtype for A in result.factors} == {np.dtype("float32" if narrow else "float64")}
    expected = run(X.astype(np.float64), method="hals", iterations=30)
    assert result.relative_error == pytest.approx(expected.relative_error, rel=1e-3 if narrow else 1e-12)


def test_a_memory_map_is_used_where_it_lies(tmp_path: Path) -> None:
    X = np.random.default_rng(3).random((30, 20, 10))
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected, got = run(X, method="apg"), run(mapped, method="apg")
    assert [A.tobytes() for A in got.factors] == [A.tobytes() for A in expected.factors]


@pytest.mark.parametrize("form", [np.ascontiguousarray, np.asfortranarray])
@pytest.mark.parametrize("method", ["mu", "hals", "apg", "anls-bpp"])
def test_a_contiguous_tensor_is_never_copied_and_the_estimate_holds(form: Layout, method: str) -> None:
    X = form(np.random.default_rng(4).random((190, 180, 150)))
    settings = Settings(rank=5, method=method, stop={"max_iterations": 3})
    estimate = estimate_memory(X, settings)
    assert estimate.copy == 0
    assert estimate.total < X.nbytes
    solve(X[:2, :2, :2], settings)  # what numba and BLAS load once is not this run's
    tracemalloc.start()
    solve(X, settings, threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < estimate.total


@pytest.mark.parametrize("mode", ["best", "all"])
def test_the_estimate_holds_with_trial_starts(mode: str) -> None:
    """A long mode, so that the factors that are carried along outweigh the rest."""
    X = synthetic.planted((8_000, 6, 5), 3, snr_db=20).tensor
    fields: dict[str, Any] = {"beta": 0.3, "starts_mode": mode, "accelerate": "none", "stop": {"tolerance": 1e-2}}
    settings = Settings.recommended(8, **fields)
    solve(X[:50], settings)
    tracemalloc.start()
    result = solve(X, settings, threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(result.starts) > 3
    assert peak < estimate_memory(X, settings).total


def test_grams_are_double_whatever_the_precision() -> None:
    A = np.random.default_rng(5).random((500, 4)).astype(np.float32)
    exact = A.astype(np.float64)
    np.testing.assert_allclose(gram(A), exact.T @ exact, rtol=1e-14)


@pytest.mark.parametrize("shape", [(40, 30), (20, 12, 10), (10, 9, 8, 7), (6, 5, 5, 4, 4)])
def test_a_sweep_touches_the_tensor_twice(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    touched = 0
    for name in ("contract_inner", "contract_outer"):
        product = getattr(GEMM, name)

        def counted(self: Gemm, weights: Array, product: Any = product) -> Any:
            nonlocal touched
            touched += 1
            return product(self, weights)

        monkeypatch.setattr(GEMM, name, counted)
    run(np.random.default_rng(6).random(shape), method="hals", iterations=5)
    assert touched == 2 * 5


def test_the_estimate_includes_a_conversion() -> None:
    settings = Settings(rank=5, method="mu")
    X = np.ones((10, 11, 12), np.int16)
    assert estimate_memory(X, settings).copy == X.size * 8
    assert estimate_memory(X.astype(np.float64)[::2], settings).copy == X.size // 2 * 8
    assert (
        estimate_memory(X.astype(np.float64), settings.model_copy(update={"precision": "float32"})).copy == X.size * 4
    )
