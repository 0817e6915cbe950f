"""New samples on a fixed model: some factors are kept, and the others are fitted."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

from sparse_ncp.solvers import METHODS, InvalidInput, Settings, State, metrics, solve, sweeps, synthetic
from sparse_ncp.solvers.tensor.products import Float64
from tests.solvers.real_data.patterns import holed, missing_in, model

PLANTED = synthetic.planted((24, 12, 10), 3, snr_db=40, seed=1)
X, FACTORS = PLANTED.tensor, PLANTED.factors
MODEL = {2: FACTORS[1], 3: FACTORS[2]}
STOP = {"criterion": "relative_objective", "tolerance": 1e-9, "patience": 3, "max_iterations": 300}


def asked(**fields: Any) -> Settings:
    return Settings(**{"rank": 3, "method": "anls-bpp", "missing": "nan", "stop": STOP, **fields})


def rows_by_nnls(X: Float64, observed: Any) -> Float64:
    B = np.einsum("jr,kr->jkr", FACTORS[1], FACTORS[2]).reshape(-1, 3)
    rows = zip(X.reshape(len(X), -1), observed.reshape(len(X), -1), strict=True)
    return np.array([nnls(B[seen], row[seen])[0] for row, seen in rows])


@pytest.mark.parametrize("pattern", [None, "scattered", "band", "band and few"])
@pytest.mark.parametrize("method", METHODS)
def test_one_free_mode_is_a_single_exact_least_squares_problem(method: str, pattern: str | None) -> None:
    missing = np.zeros(X.shape, bool) if pattern is None else missing_in(pattern, X.shape)
    result = solve(holed(X, missing), asked(method=method, alpha=0.0), fixed=MODEL, threads=1)
    assert (result.stop_reason, result.iterations) == ("exact", 1)
    np.testing.assert_allclose(result.factors[0], rows_by_nnls(X, ~missing), atol=1e-7)
    assert all(result.factors[mode - 1].tobytes() == A.tobytes() for mode, A in MODEL.items())
    residual = np.linalg.norm((X - model(result.factors))[~missing]) / np.linalg.norm(X[~missing])
    np.testing.assert_allclose(result.relative_error, residual, rtol=1e-9)


def test_the_exact_solution_has_the_penalty() -> None:
    heavy = solve(X, asked(penalty="l1", beta=5.0), fixed=MODEL, threads=1)
    light = solve(X, asked(penalty="l1"), fixed=MODEL, threads=1)
    assert heavy.factors[0].sum() < light.factors[0].sum()
    assert heavy.sparsity.per_mode[0] >= light.sparsity.per_mode[0]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("fixed", [(1,), (2,), (3,)])
@pytest.mark.parametrize("method", METHODS)
def test_two_free_modes_are_fitted_to_the_third(method: str, fixed: tuple[int, ...], order: Any) -> None:
    given = {mode: FACTORS[mode - 1] for mode in fixed}
    result = solve(np.asarray(X, order=order), asked(method=method, starts=2), fixed=given, threads=1)
    assert all(result.factors[mode - 1].tobytes() == A.tobytes() for mode, A in given.items())
    assert metrics.factor_match_score(result.factors, FACTORS) > 0.98
    objective = [
        value for value, start in zip(result.history.objective, result.history.start, strict=True) if not start
    ]
    if METHODS[method].monotone:
        noise = 1e-14 * np.square(X).sum()
        assert all(after <= before + noise for before, after in pairwise(objective[1:]))


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_rescaling_and_extrapolation_leave_fixed_factors_alone(beta: float) -> None:
    recommended = Settings.recommended(3, beta=beta, missing="nan")
    result = solve(X, recommended, fixed={2: FACTORS[1]}, threads=1)
    assert result.factors[1].tobytes() == FACTORS[1].tobytes()
    assert len(result.starts) > 1
    assert metrics.factor_match_score(result.factors, FACTORS) > 0.98


def test_the_working_precision_is_that_of_the_tensor() -> None:
    result = solve(X.astype(np.float32), asked(), fixed={1: FACTORS[0]}, threads=1)
    assert result.factors[0].tobytes() == FACTORS[0].astype(np.float32).tobytes()


def test_order_four_with_any_subset() -> None:
    planted = synthetic.planted((10, 8, 6, 5), 2, snr_db=40, seed=3)
    for modes in ([1], [4], [1, 3], [2, 4], [1, 2, 4], [2, 3, 4]):
        given = {mode: planted.factors[mode - 1] for mode in modes}
        result = solve(planted.tensor, asked(rank=2, starts=2), fixed=given, threads=1)
        assert metrics.factor_match_score(result.factors, planted.factors) > 0.98
        assert (result.stop_reason == "exact") == (len(modes) == 3)


def test_a_run_is_resumed_with_its_fixed_factors_or_refused() -> None:
    wanted = Settings.recommended(3, beta=0.05)
    states = list(sweeps(X, wanted, fixed={2: FACTORS[1]}, threads=1))
    for state in states[:-1:6]:
        saved = State.from_bytes(state.to_bytes())
        for fixed in (None, {2: FACTORS[1]}):
            *_, last = sweeps(X, wanted, fixed=fixed, resume=saved, threads=1)
            assert [A.tobytes() for A in last.factors] == [A.tobytes() for A in states[-1].factors]
    for other in ({3: FACTORS[2]}, {2: 2 * FACTORS[1]}):
        with pytest.raises(InvalidInput, match="fixed: differs from the start of the run"):
            next(sweeps(X, wanted, fixed=other, resume=states[0]))
    (exact,) = sweeps(X, asked(), fixed=MODEL, threads=1)
    assert list(sweeps(X, asked(), resume=State.from_bytes(exact.to_bytes()))) == []


def test_initial_factors_go_along_with_fixed_ones() -> None:
    start = [np.ones((length, 3)) for length in X.shape]
    one_sweep = asked(method="hals", normalise=False, stop={"max_iterations": 1})
    result = solve(X, one_sweep, initial=start, fixed={2: FACTORS[1]}, threads=1)
    assert result.factors[1].tobytes() == FACTORS[1].tobytes()
    with pytest.raises(InvalidInput, match="initial: has 2 components"):
        solve(X, one_sweep, initial=[A[:, :2] for A in start], fixed={2: FACTORS[1]})


@pytest.mark.parametrize(
    ("fixed", "fields", "words"),
    [
        ({0: FACTORS[0]}, {}, "fixed: has a factor for mode 0; count the modes from 1 to 3"),
        ({4: FACTORS[0]}, {}, "fixed: has a factor for mode 4"),
        (dict(enumerate(FACTORS, start=1)), {}, "fixed: has a factor for every mode"),
        ({2: FACTORS[0]}, {}, r"fixed A2: has shape \(24, 3\); give \(12, 3\)"),
        ({2: FACTORS[1][:, :2]}, {}, r"fixed A2: has shape \(12, 2\)"),
        ({2: -FACTORS[1]}, {}, "fixed A2: has negative entries, .* of"),
        ({2: FACTORS[1] * np.nan}, {}, "fixed A2: has NaN"),
        ({2: FACTORS[1] * 1e80}, {}, "fixed: gives a model outside the range"),
        ({2: FACTORS[1]}, {"regrow": True, "penalty": "l1"}, "regrow: cannot be combined with fixed"),
        ({2: FACTORS[1]}, {"sparsity": 0.1, "penalty": "l1"}, "sparsity: .*give beta instead"),
    ],
)
def test_unfit_factors_are_refused(fixed: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        solve(X, asked(**fields), fixed=fixed)


def test_a_component_that_the_new_samples_lack_is_reported() -> None:
    only_two = model([np.column_stack((FACTORS[0][:, :2], np.zeros(len(X)))), *FACTORS[1:]])
    result = solve(only_two, asked(method="hals", penalty="l1", beta=0.1), fixed=MODEL, threads=1)
    assert result.weights[2] == 0
    assert result.warnings == ("2 of 3 components are left: the others do not lower the objective of this tensor",)


def test_factors_beyond_single_precision_are_refused_where_that_is_the_tensors() -> None:
    with pytest.raises(InvalidInput, match="fixed: gives a model outside the range of float32"):
        solve(X.astype(np.float32), asked(), fixed={2: FACTORS[1] * 1e40})
