"""A fit without some indices is the fit of the tensor without them, and the rows of these are computed afterwards."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import (
    METHODS,
    InvalidInput,
    Result,
    Settings,
    State,
    diagnose,
    estimate_memory,
    solve,
    sweeps,
    synthetic,
)
from tests.solvers.problems import Layout, planted, same_bits
from tests.solvers.real_data.patterns import holed, missing_in, model

SHAPE = (12, 9, 8)
OUT = {1: (0, 4, 5, 11), 2: (3,), 3: (0, 7)}
LAYOUTS: dict[str, Layout] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": lambda X: np.repeat(X, 2, axis=-1)[..., ::2],
    "float32": lambda X: X.astype(np.float32),
    "integer": lambda X: np.rint(1000 * X).astype(np.int16),
}
X = synthetic.planted(SHAPE, 3, seed=2).tensor
PLAIN: dict[str, Any] = {"rank": 3, "method": "hals", "stop": {"max_iterations": 15, "tolerance": 0.0}}


def deleted(tensor: Any, out: dict[int, tuple[int, ...]]) -> Any:
    """Delete with numpy, which may change the memory order that the last bits depend on."""
    order: Any = "F" if tensor.flags.f_contiguous and not tensor.flags.c_contiguous else "C"
    for mode, indices in out.items():
        tensor = np.delete(tensor, indices, mode - 1)
    return np.asarray(tensor, order=order)


def kept_rows(result: Result, out: dict[int, tuple[int, ...]]) -> list[Any]:
    return [np.delete(A, out.get(mode, ()), 0) for mode, A in enumerate(result.factors, start=1)]


def compare(tensor: Any, out: dict[int, tuple[int, ...]], **fields: Any) -> tuple[Result, Result]:
    """Fit with `exclude`, and fit what numpy leaves; both must agree to the last bit."""
    inputs = {name: fields.pop(name) for name in ("mask", "initial", "fixed") if name in fields}
    settings = Settings(**{**PLAIN, **fields})
    ours = solve(tensor, settings.model_copy(update={"exclude": out}), threads=2, **inputs)
    if "mask" in inputs:
        inputs["mask"] = deleted(np.broadcast_to(inputs["mask"], tensor.shape), out)
    if "initial" in inputs:
        inputs["initial"] = [np.delete(A, out.get(n, ()), 0) for n, A in enumerate(inputs["initial"], start=1)]
    if "fixed" in inputs:
        inputs["fixed"] = {mode: np.delete(A, out.get(mode, ()), 0) for mode, A in inputs["fixed"].items()}
    theirs = solve(deleted(tensor, out), settings, threads=1, **inputs)
    assert same_bits(kept_rows(ours, out), theirs.factors)
    assert ours.history.objective == theirs.history.objective
    assert (ours.objective, ours.relative_error, ours.missing) == (
        theirs.objective,
        theirs.relative_error,
        theirs.missing,
    )
    assert [len(A) for A in ours.factors] == list(tensor.shape)
    assert ours.excluded == out
    return ours, theirs


@pytest.mark.parametrize("out", [{1: (4,)}, {1: (0, 1)}, {1: (11,)}, {3: (7,)}, {2: (0, 8)}, OUT])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_fit_is_that_of_the_rest(layout: str, out: dict[int, tuple[int, ...]]) -> None:
    compare(LAYOUTS[layout](X), out)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_fits_the_rest(method: str) -> None:
    compare(X, OUT, method=method, beta=0.05, rescale=True)


def test_starts_regrowth_and_compression_fit_the_rest() -> None:
    large = synthetic.planted((60, 50, 40), 3, seed=1).tensor
    fields = Settings.recommended(3, sparsity=0.01, starts=4, accelerate="compress").model_dump() | {"preset": None}
    ours, _ = compare(large, {1: (3, 40), 2: (7,)}, **fields)
    assert ours.compressed_iterations
    assert len(ours.starts) == 4


@pytest.mark.parametrize("layout", ["C", "Fortran"])
def test_missing_entries_masks_and_given_factors_lose_the_same_rows(layout: str) -> None:
    gappy = LAYOUTS[layout](np.where(missing_in("band and few", X.shape), np.nan, X))
    mask = np.ones((SHAPE[0], 1, SHAPE[2]), bool)
    mask[2, 0, 3] = mask[5, 0, 1] = False
    random = np.random.default_rng(0)
    initial = [random.random((length, 3)) for length in SHAPE]
    compare(gappy, OUT, missing="nan")
    compare(gappy, OUT, missing="nan", mask=mask, initial=initial)
    ours, _ = compare(X, OUT, fixed={1: initial[0], 3: initial[2]})
    assert np.array_equal(ours.factors[0], initial[0])  # a fixed factor stays as it is, also where it was not used
    masked = solve(np.ma.masked_array(X, ~np.broadcast_to(mask, SHAPE)), Settings(**PLAIN, exclude=OUT))
    assert same_bits(masked.factors, solve(X, Settings(**PLAIN, exclude=OUT), mask=mask).factors)


@pytest.mark.parametrize("fields", [{}, {"beta": 0.3, "alpha": 0.1}, {"beta": 0.2, "penalty": "l1_squared"}])
@pytest.mark.parametrize("gappy", [False, True])
def test_excluded_rows_minimise_the_objective_of_their_slice(fields: dict[str, Any], gappy: bool) -> None:
    from scipy.optimize import minimize

    tensor: Any = holed(X, missing_in("scattered", X.shape)) if gappy else X
    result = solve(tensor, Settings(**{**PLAIN, "method": "anls-bpp", "missing": "nan", "exclude": OUT, **fields}))
    alpha, beta, squared = result.resolved.alpha, result.resolved.beta, result.resolved.penalty == "l1_squared"
    for mode, indices in OUT.items():
        rest = {other: out for other, out in OUT.items() if other != mode}
        others = [A for n, A in enumerate(kept_rows(result, rest), start=1) if n != mode]
        design = np.einsum("ir,jr->ijr", *others).reshape(-1, 3)
        for index in indices:
            x = np.moveaxis(deleted(tensor, rest), mode - 1, 0)[index].ravel()
            seen = ~np.isnan(x)

            def objective(a: Any, x: Any = x, seen: Any = seen, mode: int = mode, design: Any = design) -> float:
                l1 = a.sum() ** 2 / 2 if squared else a.sum()
                error = x[seen] - design[seen] @ a
                return float(error @ error / 2 + alpha[mode - 1] / 2 * a @ a + beta[mode - 1] * l1)

            row = result.factors[mode - 1][index]
            best = minimize(objective, np.full(3, 0.1), bounds=[(0, None)] * 3, options={"ftol": 1e-15, "gtol": 1e-10})
            assert objective(row) <= best.fun * (1 + 1e-9) + 1e-12


def test_an_excluded_slice_may_be_as_bad_as_it_is() -> None:
    bad = X.copy()
    bad[4] = np.nan
    bad[0, 2:5] = np.inf
    bad[0, 6] = np.nan
    bad[5, 1] = -100.0
    result = solve(bad, Settings(**PLAIN, exclude={1: [0, 4, 5]}))
    clean = solve(X, Settings(**PLAIN, exclude={1: [0, 4, 5]}))
    assert same_bits(kept_rows(result, {1: (0, 4, 5)}), kept_rows(clean, {1: (0, 4, 5)}))
    assert not result.factors[0][4].any()
    assert np.isfinite(result.factors[0]).all()
    assert np.allclose(result.factors[0][0], clean.factors[0][0], rtol=0.2, atol=0.05)


@pytest.mark.parametrize("at", [1, 6, 14])
def test_a_resumed_run_has_the_same_bits(at: int) -> None:
    settings = Settings(**{**PLAIN, "method": "anls-bpp", "beta": 0.1}, exclude=OUT)
    states = list(sweeps(X, settings))
    *_, last = sweeps(X, settings, resume=State.from_bytes(states[at - 1].to_bytes()))
    assert same_bits(last.factors, states[-1].factors)
    assert last.history.objective == states[-1].history.objective


def test_a_state_has_whole_factors_before_the_rows_are_known() -> None:
    state = next(sweeps(X, Settings(**PLAIN, exclude=OUT)))
    whole = state.whole_factors()
    assert [len(A) for A in whole] == list(SHAPE)
    for mode, indices in OUT.items():
        assert not whole[mode - 1][list(indices)].any()
        assert np.array_equal(np.delete(whole[mode - 1], indices, 0), state.factors[mode - 1])


@pytest.mark.parametrize(
    ("exclude", "problem", "remedy"),
    [
        ({4: [0]}, "names mode 4 of a tensor with 3", "count the modes from 1 to 3"),
        ({1: [3, 12]}, "has index 12 of mode 1, whose length is 12", "give indices from 0 to 11"),
        ({2: range(9)}, "leaves none of the 9 indices of mode 2", "exclude at most 7 of them"),
        ({2: range(8)}, "leaves 1 of the 9 indices of mode 2", "exclude at most 7 of them"),
        ({1: ["blank"]}, "names 'blank' in mode 1", "give indices from 0 to 11; labels are for tensors with axes"),
    ],
)
def test_what_cannot_be_excluded_is_refused(exclude: Any, problem: str, remedy: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        solve(X, Settings(**PLAIN, exclude={mode: list(entries) for mode, entries in exclude.items()}))
    assert (caught.value.field, caught.value.problem) == ("exclude", problem)
    assert caught.value.remedy.startswith(remedy)


@pytest.mark.parametrize("exclude", [{1: [2, 2]}, {0: [1]}, {1: [-1]}, {1: [0.5]}, {1: 3}, {1: [True]}, [1, 2]])
def test_exclusions_that_mean_nothing_are_no_settings(exclude: Any) -> None:
    with pytest.raises(ValueError, match="exclude"):
        Settings(**PLAIN, exclude=exclude)


def test_no_exclusion_is_none() -> None:
    assert Settings(**PLAIN, exclude={}).exclude is None
    assert Settings(**PLAIN, exclude={"2": []}).exclude is None
    assert Settings(**PLAIN, exclude={"1": [3]}).exclude == {1: (3,)}


def test_given_factors_need_a_row_for_every_index() -> None:
    kept = [np.ones((length, 3)) for length in (8, 9, 8)]
    for given in ({"initial": kept}, {"fixed": {1: kept[0]}}):
        with pytest.raises(InvalidInput, match="A1: has shape"):
            solve(X, Settings(**PLAIN, exclude={1: [0, 4, 5, 11]}), **given)


def test_messages_have_the_indices_of_the_whole_tensor() -> None:
    spoiled = X.copy()
    spoiled[6, 2, 3] = np.nan
    with pytest.raises(InvalidInput, match=r"the first at \(6, 2, 3\)"):
        solve(spoiled, Settings(**PLAIN, exclude=OUT))


def test_the_diagnosis_is_of_the_rest_with_residuals_of_the_excluded() -> None:
    tensor = X.copy()
    tensor[4] = np.random.default_rng(1).random(SHAPE[1:]) * 30
    result = solve(tensor, Settings(**PLAIN, exclude=OUT))
    rest = solve(deleted(tensor, OUT), Settings(**PLAIN))
    ours, theirs = result.diagnostics, rest.diagnostics
    assert ours is not None
    assert theirs is not None
    assert (ours.core_consistency, ours.congruence) == (theirs.core_consistency, theirs.congruence)
    for mode, (own, other) in enumerate(zip(ours.modes, theirs.modes, strict=True), start=1):
        np.testing.assert_allclose(np.delete(own.residual, OUT[mode]), other.residual, rtol=1e-12)
        np.testing.assert_array_equal(np.array(own.leverage)[list(OUT[mode])], 0.0)
    whole = model([result.factors[0], *kept_rows(result, OUT)[1:]])
    squared = np.square(deleted(tensor, {2: OUT[2], 3: OUT[3]}) - whole).sum(axis=(1, 2))
    np.testing.assert_allclose(np.array(ours.modes[0].residual)[list(OUT[1])], squared[list(OUT[1])], rtol=1e-9)
    again = diagnose(tensor, result.factors, exclude=OUT)
    assert again == ours


def test_a_memory_map_gives_the_bits_of_its_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    settings = Settings(**PLAIN, exclude=OUT)
    assert same_bits(solve(mapped, settings).factors, solve(X, settings).factors)


@pytest.mark.parametrize("out", [{1: (5,)}, {3: (5, 9)}, {1: (0, 7), 2: (1,), 3: (0,)}])
def test_the_memory_estimate_holds(out: dict[int, tuple[int, ...]]) -> None:
    tensor = np.random.default_rng(0).random((80, 90, 100))
    settings = Settings(rank=4, method="hals", exclude=out, stop={"max_iterations": 2})
    solve(tensor, settings, threads=1)  # compile
    tracemalloc.start()
    solve(tensor, settings, threads=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    estimate = estimate_memory(tensor, settings)
    assert peak <= estimate.total
    assert estimate.copy >= 0.9 * tensor.nbytes


def test_one_that_is_kept_at_the_edge_is_not_copied() -> None:
    tensor = np.random.default_rng(0).random((80, 90, 100))
    for indices in ((0, 1), (79,)):
        settings = Settings(rank=4, method="hals", exclude={1: indices}, stop={"max_iterations": 2})
        assert estimate_memory(tensor, settings).copy == 0


def test_planted_samples_get_the_loadings_that_were_left_out() -> None:
    true = planted(3, seed=3)
    result = solve(true.tensor, Settings.recommended(3, exclude={1: [2, 6]}))
    whole = model(result.factors)
    assert np.linalg.norm((whole - true.tensor)[[2, 6]]) < 0.1 * np.linalg.norm(true.tensor[[2, 6]])
