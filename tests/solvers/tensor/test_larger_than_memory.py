"""A file larger than memory is read in order and as rarely as possible, and gives the bits of an array in memory."""

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from sparse_ncp.solvers import Diagnostics, Settings, diagnose, estimate_memory, solve, synthetic
from sparse_ncp.solvers.bcd.starts.initial import SVD_OVERSAMPLES, nndsvd
from sparse_ncp.solvers.diagnostics.core_consistency import ROUNDS
from sparse_ncp.solvers.tensor import dense
from sparse_ncp.solvers.tensor.compressed import compress
from sparse_ncp.solvers.tensor.dense import Tensor
from sparse_ncp.solvers.tensor.gemm import out_of_core
from sparse_ncp.solvers.tensor.gemm.blocks import Blocks, Split
from sparse_ncp.solvers.tensor.gemm.codegen import VECTOR_BYTES
from sparse_ncp.solvers.tensor.gemm.out_of_core import contiguous_runs, memory_bytes
from sparse_ncp.solvers.tensor.gemm.skinny import gemm_for
from sparse_ncp.solvers.tensor.protocol import Positive
from sparse_ncp.solvers.tensor.scan import scan
from sparse_ncp.solvers.tensor.threads import Threads
from tests.solvers.problems import start

SHAPES = [(40, 30, 20), (9, 400, 33), (3, 20_000), (20_000, 3), (7, 6, 5, 40, 4)]
Order = Literal["C", "F"]
needs_vectors = pytest.mark.skipif(VECTOR_BYTES is None, reason="without AVX2 or NEON, BLAS reads from a memory map")


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Treat every memory map as larger than memory, and record the bytes read from files."""
    read, calls = out_of_core._pieces, []
    monkeypatch.setattr(out_of_core, "LEAST_BYTES", 0)
    monkeypatch.setattr(out_of_core, "memory_bytes", lambda: 1)
    monkeypatch.setattr(out_of_core, "STREAM_TILE_BYTES", 1 << 15)
    monkeypatch.setattr(out_of_core, "READ_BYTES", 1 << 12)

    def counted(offset: int, run: Any) -> Any:
        calls.append(len(run))
        return read(offset, run)

    monkeypatch.setattr(out_of_core, "_pieces", counted)
    return calls


@pytest.fixture(params=["as it is", "without reads past the cache"])
def any_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on this system, and as on one without reads past the page cache."""
    if request.param == "as it is":
        return
    opened, asked = os.open, []

    def refused(path: str, flags: int, *mode: int) -> int:
        asked.append(flags & os.O_DIRECT)
        if asked[-1]:
            raise OSError("Invalid argument")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refused)


def saved(X: NDArray[Any], folder: Path) -> NDArray[Any]:
    """Save a tensor to a file and map it, so that entries read through the map are wrong."""
    np.save(folder / "x.npy", X)
    mapped: NDArray[Any] = np.load(folder / "x.npy", mmap_mode="c")
    mapped[...] = -7
    return mapped


def without_samples(found: Diagnostics | None) -> Diagnostics:
    """Leave out what is not computed for a file larger than memory: refits would read it out of order."""
    assert found is not None
    return replace(found, samples=None)


@needs_vectors
@pytest.mark.usefixtures("any_system")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", ["hals", "anls-bpp"])
def test_a_file_larger_than_memory_is_read_twice_per_sweep_and_gives_the_bits_of_an_array(
    shape: tuple[int, ...], order: Order, method: str, tmp_path: Path, little_memory: list[int]
) -> None:
    X = np.asarray(synthetic.planted(shape, 3, snr_db=10).tensor, order=order)
    asked = Settings(rank=5, method=method, stop={"max_iterations": 4, "tolerance": 0.0}, diagnose=False)
    in_memory = solve(X, asked, threads=1)
    assert little_memory == []
    streamed = solve(saved(X, tmp_path), asked, threads=2)
    assert [A.tobytes() for A in streamed.factors] == [A.tobytes() for A in in_memory.factors]
    assert streamed.history.objective == in_memory.history.objective
    # The scan; two per sweep; a run in the middle takes one more at the start.
    assert sum(little_memory) <= (1 + 2 * 4 + 1) * X.nbytes


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_scan_and_residual_take_one_read_and_the_diagnosis_two(
    shape: tuple[int, ...], dtype: Any, order: Order, tmp_path: Path, little_memory: list[int]
) -> None:
    X = np.asarray(np.random.default_rng(0).random(shape), dtype, order=order)
    mapped, factors = saved(X, tmp_path), [A.astype(dtype) for A in start(shape, 2)]

    def passes(tensor: NDArray[Any], threads: int) -> list[object]:
        with Threads(threads) as pool:
            found = scan(tensor, pool, runs=contiguous_runs)
            residual = Tensor(tensor, 1.0, Positive(1.0, 1.0), pool).squared_residual(factors)
        return [found, residual, without_samples(diagnose(tensor, factors, threads=threads))]

    assert passes(mapped, 2) == passes(X, 1)
    assert sum(little_memory) == (1 + 1 + (1 if len(shape) == 2 else 2)) * X.nbytes  # no core of two modes


def scattered(X: NDArray[Any]) -> dict[str, Any]:
    """Return a tensor with more scattered NaN than fit into the list."""
    X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    return {}


def in_a_band(X: NDArray[Any]) -> dict[str, Any]:
    """Return a tensor with NaN all along the last mode, and a few others."""
    X[np.random.default_rng(1).random(X.shape[:-1]) < 0.1] = np.nan
    X[np.random.default_rng(2).random(X.shape) < 0.001] = np.nan
    return {}


def by_a_mask(X: NDArray[Any]) -> dict[str, Any]:
    """Return a mask that is constant along the first mode."""
    return {"mask": np.random.default_rng(1).random((1, *X.shape[1:])) < 0.9}


@needs_vectors
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(40, 30, 20), (9, 400, 33), (7, 6, 5, 40, 4)])
@pytest.mark.parametrize("gaps", [scattered, in_a_band, by_a_mask])
def test_a_file_with_missing_entries_is_read_as_seldom_and_gives_the_bits_of_an_array(
    gaps: Callable[[NDArray[Any]], dict[str, Any]],
    shape: tuple[int, ...],
    order: Order,
    tmp_path: Path,
    little_memory: list[int],
) -> None:
    X = np.asarray(synthetic.planted(shape, 3, snr_db=10).tensor, order=order)
    given = gaps(X)
    asked = Settings(rank=3, method="hals", missing="nan", stop={"max_iterations": 4, "tolerance": 0.0})
    in_memory = solve(X, asked, threads=1, **given)
    assert little_memory == []
    streamed = solve(saved(X, tmp_path), asked, threads=2, **given)
    assert [A.tobytes() for A in streamed.factors] == [A.tobytes() for A in in_memory.factors]
    assert streamed.history.objective == in_memory.history.objective
    assert without_samples(streamed.diagnostics) == without_samples(in_memory.diagnostics)
    assert streamed.diagnostics is not None
    assert streamed.diagnostics.samples is not None
    assert "larger than memory" in str(streamed.diagnostics.samples.reason)
    # The scan, the pattern, then its exceptions or bits; two per sweep, one more in the middle; the diagnosis, and a
    # round of its core consistency each.
    assert sum(little_memory) <= (3 + 2 * 4 + 1 + 1 + 1 + ROUNDS) * X.nbytes


@needs_vectors
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("lengths", "reads"),
    [
        ((90, 20, 30), 6 * (2 + 1)),  # two for the slowest mode, one for the others together
        ((90, 4, 30), 6 * (2 + 1)),
        ((60, 30, 3, 20), 6 * (2 + 1)),
        # No slab has all modes but the slowest: each is read on its own. That one is short: its basis is known.
        ((9, 900, 16), (1 + 2) + 6 * 2 + 6 * 1),
    ],
)
def test_singular_vectors_take_two_reads_per_product_of_the_slowest_mode_and_one_of_all_others(
    lengths: tuple[int, ...],
    reads: int,
    order: Order,
    tmp_path: Path,
    little_memory: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dense, "MANY_ENTRIES", 0)
    shape = lengths if order == "C" else lengths[::-1]
    X = np.asarray(synthetic.planted(shape, 3, snr_db=10).tensor, order=order)

    def found(tensor: NDArray[Any], threads: int) -> list[bytes]:
        fallbacks = {mode: np.ones((length, 2)) for mode, length in enumerate(shape)}
        with Threads(threads) as pool:
            whole = Tensor(tensor, 1.0, Positive(1.0, 1.0), pool)
            return [A.tobytes() for A in nndsvd(whole.gram_times, fallbacks, np.random.default_rng(0)).values()]

    mapped = saved(X, tmp_path)
    assert found(mapped, 2) == found(X, 1)
    assert sum(little_memory) == reads * X.nbytes


@needs_vectors
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("order", ["C", "F"])
def test_singular_vectors_take_a_few_slabs_and_factors(
    order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is between two products of the slowest mode: here XᵀV would take a quarter of the tensor."""
    monkeypatch.setattr(dense, "MANY_ENTRIES", 0)
    monkeypatch.setattr(out_of_core, "STREAM_TILE_BYTES", 1 << 18)
    monkeypatch.setattr(out_of_core, "READ_BYTES", 1 << 18)
    lengths = (64, 300, 500)
    shape = lengths if order == "C" else lengths[::-1]
    mapped = saved(np.asarray(np.random.default_rng(0).random(shape), np.float32, order=order), tmp_path)
    fallbacks = {mode: np.ones((length, 3)) for mode, length in enumerate(shape)}
    with Threads(2) as pool:
        whole = Tensor(mapped, 1.0, Positive(1.0, 1.0), pool)
        whole.gram_times({0: np.ones((shape[0], 1))})  # what numba and BLAS load once is not this run's
        tracemalloc.start()
        nndsvd(whole.gram_times, fallbacks, np.random.default_rng(0))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    slabs, basis = 6 * out_of_core.STREAM_TILE_BYTES, max(shape) * (3 + SVD_OVERSAMPLES) * 8
    assert peak < slabs + (dense.GROUPS + 8) * basis + 4 * dense.TILE * 8 * 2 < mapped.nbytes / 4


@needs_vectors
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("many", [0, 1 << 30])
@pytest.mark.parametrize("shape", [*SHAPES, (90, 20, 30), (2, 30, 900)])
def test_a_mode_is_unfolded_as_its_definition_says_however_it_is_read(
    shape: tuple[int, ...],
    many: int,
    order: Order,
    tmp_path: Path,
    little_memory: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dense, "MANY_ENTRIES", many)
    random = np.random.default_rng(0)
    X = np.asarray(random.standard_normal(shape), order=order)
    V = {mode: random.standard_normal((length, 2)) for mode, length in enumerate(shape)}
    with Threads(2) as pool:
        unfolded = Tensor(saved(X, tmp_path), 1.0, Positive(1.0, 1.0), pool).gram_times(V)
    assert sum(little_memory) >= X.nbytes
    for mode, basis in V.items():
        matrix = np.moveaxis(X, mode, 0).reshape(len(basis), -1)
        right = matrix.T @ basis
        expected = matrix @ right, np.square(np.maximum(right, 0)).sum(0), np.square(np.minimum(right, 0)).sum(0)
        found = unfolded[mode].product, unfolded[mode].positive, unfolded[mode].negative
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * abs(theirs).max())


@needs_vectors
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(40, 30, 20), (9, 400, 33), (7, 6, 5, 40, 4)])
def test_a_sketch_takes_four_reads(
    shape: tuple[int, ...], order: Order, tmp_path: Path, little_memory: list[int]
) -> None:
    X = np.asarray(synthetic.planted(shape, 3, snr_db=10).tensor, order=order)

    def residual(tensor: NDArray[Any], threads: int) -> float:
        with Threads(threads) as pool:
            small = compress(Tensor(tensor, float(np.linalg.norm(X)), Positive(1.0, 1.0), pool), 2, pool)
            assert small is not None
            return small.squared_residual(start(shape, 2))

    assert residual(saved(X, tmp_path), 2) == residual(X, 1)
    assert sum(little_memory) == 4 * X.nbytes


@needs_vectors
def test_a_part_of_a_map_is_read_from_its_own_place(tmp_path: Path, little_memory: list[int]) -> None:
    X = np.random.default_rng(0).random((50, 40, 30))
    np.save(tmp_path / "x.npy", X)
    part = np.load(tmp_path / "x.npy", mmap_mode="r")[7:31]
    W = np.random.default_rng(1).random((24, 4))
    with Threads(2) as pool:
        product = gemm_for(Blocks(part, Split(0, 1)), pool).contract_inner(W)
    np.testing.assert_allclose(product, np.einsum("iab,ir->abr", X[7:31], W).reshape(-1, 4), rtol=1e-13)
    assert sum(little_memory) == part.nbytes


@needs_vectors
def test_a_file_that_was_cut_short_ends_the_run_with_an_error(tmp_path: Path, little_memory: list[int]) -> None:
    np.save(tmp_path / "x.npy", np.ones((50, 40, 30)))
    blocks = Blocks(np.load(tmp_path / "x.npy", mmap_mode="r"), Split(0, 1))
    with Threads(2) as pool:
        thin = gemm_for(blocks, pool)
        os.truncate(tmp_path / "x.npy", 9000)
        with pytest.raises(OSError, match=r"ends .* bytes too early"):
            thin.contract_inner(np.ones((50, 2)))


def test_memory_is_what_the_system_reports() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory_bytes() <= pages


@pytest.mark.parametrize("exclude", [{1: [3]}, {1: [0, 7], 3: [2]}])
@pytest.mark.parametrize("has_gaps", [False, True])
def test_indices_are_left_out_of_a_file_larger_than_memory_without_a_copy(
    exclude: Any, has_gaps: bool, tmp_path: Path, little_memory: list[int]
) -> None:
    X = synthetic.planted((40, 30, 20), 3, snr_db=20).tensor
    X[3] *= np.random.default_rng(0).random((30, 20)) * 5
    if has_gaps:
        X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    stop = {"max_iterations": 30, "tolerance": 0.0}
    settings = Settings(rank=3, method="anls-bpp", missing="nan", exclude=exclude, stop=stop)
    in_memory = solve(X, settings)
    assert little_memory == []
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert estimate_memory(mapped, settings).copy == 0
    streamed = solve(mapped, settings)
    assert little_memory
    assert streamed.relative_error == pytest.approx(in_memory.relative_error, rel=1e-9)
    assert streamed.missing == in_memory.missing
    for ours, theirs in zip(streamed.factors, in_memory.factors, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
    found, known = streamed.diagnostics, in_memory.diagnostics
    assert found is not None
    assert known is not None
    assert found.core_consistency is None
    for one, other in zip(found.modes, known.modes, strict=True):
        np.testing.assert_allclose(one.residual, other.residual, rtol=1e-6)
        np.testing.assert_allclose(one.leverage, other.leverage, rtol=1e-6, atol=1e-9)
    if not has_gaps:
        assert found.unobserved is known.unobserved is None
        return
    assert found.unobserved is not None
    assert known.unobserved is not None
    assert found.unobserved.missing == known.unobserved.missing
    assert found.unobserved.ratio == pytest.approx(known.unobserved.ratio, rel=1e-6)
    shares = [[component.unobserved for component in each.components] for each in (found, known)]
    np.testing.assert_allclose(shares[0], shares[1], rtol=1e-6)
    assert found.unobserved.component == known.unobserved.component
