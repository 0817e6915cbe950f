"""Diagnostics agree with their definitions, for any storage of the tensor and any number of threads."""

import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sparse_ncp.solvers import Diagnostics, InvalidInput, Settings, diagnose, estimate_memory, solve, synthetic
from sparse_ncp.solvers.tensor.products import Array, Float64
from tests.solvers.problems import SHAPES, Layout, planted, run, start

LAYOUTS: dict[str, Layout] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": lambda X: np.repeat(X, 2, axis=-1)[..., ::2],
    "float32": lambda X: X.astype(np.float32),
    "integer": lambda X: np.rint(100 * X).astype(np.int16),
    "big-endian": lambda X: X.astype(">f8"),
}
# Long and short, so that each side of the matrix that the tensor is read as is the longer one for some.
UNEVEN = [(3, 70_000), (70_000, 3), (300, 2, 250), (2, 9, 4, 2000)]


def model(factors: Sequence[Array]) -> Float64:
    letters = "abcdefgh"[: len(factors)]
    terms = ",".join(f"{letter}r" for letter in letters)
    return np.asarray(np.einsum(f"{terms}->{letters}", *(A.astype(np.float64) for A in factors)), np.float64)


def residuals(
    X: NDArray[Any], factors: Sequence[Array], observed: NDArray[np.bool_] | None = None
) -> Iterator[Float64]:
    squared = np.square(X.astype(np.float64) - model(factors))
    squared = squared if observed is None else np.where(observed, squared, 0)
    for mode in range(X.ndim):
        yield squared.sum(axis=tuple(other for other in range(X.ndim) if other != mode))


def core_consistency(X: Float64, factors: Sequence[Float64]) -> float:
    """Compute it by Kronecker products, as Bro and Kiers write it, each component spread evenly over the modes."""
    norms = np.array([np.linalg.norm(A, axis=0) for A in factors])
    even = [A / norm * np.prod(norms, axis=0) ** (1 / len(factors)) for A, norm in zip(factors, norms, strict=True)]
    design = np.ones((1, 1))
    for A in even:
        design = np.kron(design, A)
    core = np.linalg.lstsq(design, X.ravel(), rcond=None)[0]
    rank = factors[0].shape[1]
    ideal = np.zeros((rank,) * len(factors))
    ideal[(np.arange(rank),) * len(factors)] = 1
    return float(100 * (1 - np.square(core - ideal.ravel()).sum() / rank))


def diagnosed(X: NDArray[Any], factors: Sequence[Array], **fields: Any) -> Diagnostics:
    found = diagnose(X, factors, **fields)
    assert found is not None
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", SHAPES)
def test_residuals_are_those_of_every_index(order: int, layout: str) -> None:
    X = LAYOUTS[layout](planted(order).tensor)
    factors = start(X.shape, 3)
    for mode, expected in zip(diagnosed(X, factors).modes, residuals(X, factors), strict=True):
        np.testing.assert_allclose(mode.residual, expected, rtol=1e-12)


@pytest.mark.parametrize("shape", UNEVEN)
def test_residuals_are_right_for_tensors_of_many_tiles(shape: tuple[int, ...]) -> None:
    X, factors = np.random.default_rng(0).random(shape), start(shape, 2)
    for mode, expected in zip(diagnosed(X, factors).modes, residuals(X, factors), strict=True):
        np.testing.assert_allclose(mode.residual, expected, rtol=1e-11)


@pytest.mark.parametrize("shape", UNEVEN)
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_tensor_of_many_slabs_has_the_same_residuals(
    shape: tuple[int, ...], order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole rows or parts of one; for any number of threads the same bits."""
    monkeypatch.setattr("sparse_ncp.solvers.tensor.gemm.out_of_core.STREAM_TILE_BYTES", 40_000)
    monkeypatch.setattr("sparse_ncp.solvers.diagnostics.diagnose.TILE", 700)
    monkeypatch.setattr("sparse_ncp.solvers.tensor.products.HELD", 500)
    X, factors = np.asarray(np.random.default_rng(0).random(shape), order=order), start(shape, 2)
    found = [diagnosed(X, factors, threads=threads) for threads in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    for mode, expected in zip(found[0].modes, residuals(X, factors), strict=True):
        np.testing.assert_allclose(mode.residual, expected, rtol=1e-11)


def test_a_memory_map_gives_the_bits_of_its_array(tmp_path: Path) -> None:
    X, factors = np.random.default_rng(1).random((90, 80, 70)), start((90, 80, 70), 4)
    np.save(tmp_path / "x.npy", X)
    assert diagnosed(np.load(tmp_path / "x.npy", mmap_mode="r"), factors) == diagnosed(X, factors)


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("shape", [(90, 80, 70), (40, 30, 20, 25), (2, 1_000_000)])
def test_any_number_of_threads_gives_the_same_bits(shape: tuple[int, ...], threads: int) -> None:
    X, factors = np.random.default_rng(2).random(shape), start(shape, 2)
    assert diagnosed(X, factors, threads=threads) == diagnosed(X, factors, threads=1)


def missing_somewhere(shape: tuple[int, ...]) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Draw a mask that has length 1 in some modes; return it and the full array that it stands for."""
    random = np.random.default_rng(3)
    for shared in ((), (0,), (1,), (0, len(shape) - 1)):
        own = tuple(1 if mode in shared else length for mode, length in enumerate(shape))
        mask = random.random(own) < 0.8
        mask.flat[0] = False
        yield mask, np.broadcast_to(mask, shape)


def consistency_around(X: NDArray[Any], factors: Sequence[NDArray[Any]], observed: NDArray[np.bool_]) -> float:
    """Core consistency with missing entries from the Tucker model of the core before, six times, on whole arrays."""
    norms = [np.linalg.norm(A.astype(float), axis=0) for A in factors]
    scale = np.prod(norms, axis=0) ** (1 / len(factors))
    even = [A / norm * scale for A, norm in zip(factors, norms, strict=True)]
    rank = len(scale)
    ideal = np.zeros((rank,) * len(factors))
    ideal[(np.arange(rank),) * len(factors)] = 1

    def times(tensor: NDArray[Any], matrices: Sequence[NDArray[Any]]) -> NDArray[Any]:
        for mode, matrix in enumerate(matrices):
            tensor = np.moveaxis(np.tensordot(matrix, tensor, (1, mode)), 0, mode)
        return tensor

    core = ideal
    for _ in range(6):
        core = times(np.where(observed, X, times(core, even)), [np.linalg.pinv(A) for A in even])
    return float(100 * (1 - np.square(core - ideal).sum() / rank))


def test_one_component_too_many_shows_in_the_core_consistency_around_holes() -> None:
    exact = synthetic.evoked((20, 16, 12), rank=3, noise=0.0).tensor
    X = exact + 0.02 * exact.max() * np.random.default_rng(0).standard_normal(exact.shape)
    X[:, 4:6, 5:9] = np.nan
    found = {}
    for rank in (3, 5):
        fitted = solve(X, Settings.recommended(rank, missing="nan", negative="keep"))
        assert fitted.diagnostics is not None
        found[rank] = fitted.diagnostics.core_consistency
    assert found[3] is not None
    assert found[3] > 90
    assert found[5] is None or found[5] < 50


@pytest.mark.parametrize("layout", ["C", "Fortran", "float32", "integer"])
@pytest.mark.parametrize("order", SHAPES)
def test_missing_entries_have_no_residual(order: int, layout: str) -> None:
    X = LAYOUTS[layout](planted(order).tensor)
    factors = start(X.shape, 3)
    for mask, whole in missing_somewhere(X.shape):
        expected = list(residuals(X, factors, whole))
        found = [diagnosed(X, factors, mask=mask), diagnosed(np.ma.masked_array(X, ~whole), factors)]
        if X.dtype.kind == "f":
            found.append(diagnosed(np.where(whole, X, X.dtype.type(np.nan)), factors))
        for diagnostics in found:
            if order in (3, 4):  # a mode of order 5 is shorter than the number of components
                assert diagnostics.core_consistency == pytest.approx(consistency_around(X, factors, whole), rel=1e-6)
            for mode, residual in zip(diagnostics.modes, expected, strict=True):
                np.testing.assert_allclose(mode.residual, residual, rtol=1e-12, atol=1e-12)


def test_the_residuals_add_up_to_the_relative_error() -> None:
    X = synthetic.planted((20, 15, 12), 3, snr_db=20).tensor
    result = run(X, rank=3, method="hals")
    assert result.diagnostics is not None
    for mode in result.diagnostics.modes:
        assert np.sqrt(sum(mode.residual)) / np.linalg.norm(X) == pytest.approx(result.relative_error, rel=1e-9)


def test_a_faulty_sample_has_the_largest_residual() -> None:
    X = synthetic.planted((20, 15, 12), 3, snr_db=30).tensor
    X[7] = np.random.default_rng(4).random(X[7].shape) * X.max()
    result = run(X, rank=3, method="anls-bpp", iterations=50)
    assert result.diagnostics is not None
    assert int(np.argmax(result.diagnostics.modes[0].residual)) == 7


def test_leverage_is_the_diagonal_of_the_projection() -> None:
    factors = start((12, 9, 5), 3)
    for mode, A in zip(diagnosed(np.ones((12, 9, 5)), factors).modes, factors, strict=True):
        np.testing.assert_allclose(mode.leverage, np.diag(A @ np.linalg.pinv(A)), rtol=1e-10)
        assert sum(mode.leverage) == pytest.approx(3)


def test_congruence_and_shares_are_those_of_the_components() -> None:
    factors = start((12, 9, 5), 3)
    factors[1][:, 2] = 0
    found = diagnosed(np.ones((12, 9, 5)), factors)
    components = [model([A[:, r : r + 1] for A in factors]).ravel() for r in range(3)]
    norms = np.array([np.linalg.norm(component) for component in components])
    products = np.array(components) @ np.array(components).T
    cosines = products / np.maximum(np.outer(norms, norms), np.finfo(float).tiny)
    np.testing.assert_allclose(found.congruence, cosines, atol=1e-12)
    np.testing.assert_allclose([c.share for c in found.components], norms**2 / (norms**2).sum(), atol=1e-12)
    assert found.components[2].share == 0


@pytest.mark.parametrize("layout", ["C", "Fortran", "strided", "float32"])
@pytest.mark.parametrize("shape", [(9, 7, 5), (6, 5, 4, 3), (5, 4, 3, 3, 3)])
def test_core_consistency_is_bro_and_kierss(shape: tuple[int, ...], layout: str) -> None:
    made = synthetic.planted(shape, 2, snr_db=10, seed=1)
    X = LAYOUTS[layout](made.tensor)
    factors = solve(made.tensor, Settings(rank=2, method="hals")).factors
    expected = core_consistency(X.astype(np.float64), [A.astype(np.float64) for A in factors])
    assert diagnosed(X, factors).core_consistency == pytest.approx(expected, abs=1e-6)


def test_core_consistency_of_many_boxes_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = synthetic.planted((30, 25, 20, 6), 3, snr_db=15)
    whole = diagnosed(made.tensor, made.factors).core_consistency
    for tile in (5, 50, 700):
        monkeypatch.setattr("sparse_ncp.solvers.diagnostics.core_consistency.TILE", tile)
        assert diagnosed(made.tensor, made.factors).core_consistency == pytest.approx(whole, abs=1e-9)


def test_core_consistency_does_not_depend_on_where_a_component_keeps_its_scale() -> None:
    made = synthetic.planted((9, 7, 5), 2, snr_db=10)
    moved = [made.factors[0] * [1e3, 1], made.factors[1] * [1e-3, 50], made.factors[2] * [1, 0.02]]
    expected = diagnosed(made.tensor, made.factors).core_consistency
    assert diagnosed(made.tensor, moved).core_consistency == pytest.approx(expected, abs=1e-6)


def test_core_consistency_falls_with_twice_as_many_components_as_there_are() -> None:
    X = synthetic.planted((25, 20, 15), 3, snr_db=20).tensor
    right, too_many = (solve(X, Settings.recommended(rank, sparsity=1e-6)).diagnostics for rank in (3, 6))
    assert right is not None
    assert too_many is not None
    assert right.core_consistency is not None
    assert right.core_consistency > 99
    assert too_many.core_consistency is None or too_many.core_consistency < 50


@pytest.mark.parametrize(
    ("shape", "rank", "reason"),
    [
        ((12, 9), 2, "two modes"),
        ((9, 7, 2), 3, "mode 3 has a length of 2, for 3 components"),
        ((80, 70, 66), 65, "a core of more than"),
    ],
)
def test_where_there_is_no_core_consistency_the_reason_is_given(shape: tuple[int, ...], rank: int, reason: str) -> None:
    found = diagnosed(np.random.default_rng(5).random(shape), start(shape, rank))
    assert found.core_consistency is None
    assert reason in str(found.core_consistency_reason)


def test_collinear_and_dead_components_are_distinguished() -> None:
    X, factors = planted(3).tensor, start((9, 7, 5), 3)
    factors[1][:, 2] = 2 * factors[1][:, 0]
    assert "mode 2 are collinear" in str(diagnosed(X, factors).core_consistency_reason)
    factors[1][:, 2] = 0
    assert diagnosed(X, factors).core_consistency is not None
    zero = diagnosed(X, [np.zeros_like(A) for A in factors])
    assert "every component is zero" in str(zero.core_consistency_reason)
    assert not any(component.share for component in zero.components)
    assert not any(leverage for mode in zero.modes for leverage in mode.leverage)


@pytest.mark.parametrize("form", [np.ascontiguousarray, np.asfortranarray])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
@pytest.mark.parametrize("shape", [(300, 200, 40), (4, 600_000), (50, 40, 30, 40)])
def test_the_estimate_of_memory_holds_and_the_tensor_is_not_copied(
    shape: tuple[int, ...], dtype: Any, form: Layout
) -> None:
    X, factors = form(np.ones(shape, dtype)), start(shape, 4)
    diagnosed(X[(slice(2),) * X.ndim], start((2,) * X.ndim, 4), threads=1)
    tracemalloc.start()
    diagnosed(X, factors, threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < estimate_memory(X, Settings(rank=4, method="mu")).work


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(("shape", "rank"), [((64, 64, 64), 20), ((10, 200, 131), 8), ((300, 30, 30), 20)])
def test_looking_for_outlying_samples_takes_no_more_memory_than_is_estimated(
    shape: tuple[int, ...], rank: int, gaps: bool
) -> None:
    X, factors = synthetic.planted(shape, rank, seed=1).tensor, start(shape, rank)
    X[0, 0, 0] = np.nan if gaps else 1.0
    diagnosed(X[:5, :4, :3], start((5, 4, 3), rank))
    tracemalloc.start()
    diagnosed(X, factors)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < estimate_memory(X, Settings(rank=rank, method="mu")).work


def test_who_does_not_want_diagnostics_or_cancels_has_none() -> None:
    X = planted(3).tensor
    assert run(X, method="hals", diagnose=False).diagnostics is None
    assert solve(X, Settings(rank=2, method="hals"), cancelled=lambda: True).diagnostics is None
    asked = iter([False, True])
    assert diagnose(X, start(X.shape, 2), cancelled=lambda: next(asked)) is None


def test_factors_and_masks_that_do_not_fit_are_refused() -> None:
    X = planted(3).tensor
    with pytest.raises(
        InvalidInput, match=r"factors: have shapes \(9, 2\), \(7, 2\); give \(9, 2\), \(7, 2\), \(5, 2\)"
    ):
        diagnose(X, start((9, 7), 2))
    with pytest.raises(InvalidInput, match="mask: has shape"):
        diagnose(X, start(X.shape, 2), mask=np.ones((9, 7, 2), bool))
