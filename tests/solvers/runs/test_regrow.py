"""Lost components are put back only where this lowers the objective."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_ncp.solvers import Result, Settings, Stop, solve, sweeps, synthetic
from sparse_ncp.solvers.bcd.objective import measure_from_scratch
from sparse_ncp.solvers.bcd.penalties import beta_for
from sparse_ncp.solvers.bcd.starts.regrow import regrow
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.tensor.validation import prepare_tensor
from tests.solvers.literal import model, objective
from tests.solvers.problems import problem_of

MADE = synthetic.planted((24, 20, 18), rank=6, snr_db=30.0)
X = MADE.tensor


@given(
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    alive=st.integers(0, 3),
    beta=st.sampled_from([0.0, 1e-3, 0.03, 0.3, 3.0]),
    alpha=st.sampled_from([0.0, 1e-6, 0.1]),
    dtype=st.sampled_from(["f8", "f4"]),
    seed=st.integers(0, 1000),
)
def test_putting_back_never_raises_the_objective(
    shape: list[int], alive: int, beta: float, alpha: float, dtype: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    tensor = np.maximum(0, random.standard_normal(shape)).astype(dtype)
    tensor.flat[0] = 1.0
    factors = [np.zeros((length, 4), dtype) for length in shape]
    for A in factors:
        A[:, :alive] = random.random((len(A), alive))
    problem = problem_of(Settings.recommended(4, alpha=alpha, beta=beta), len(shape))
    with Threads(1) as pool:
        working = prepare_tensor(tensor, None, pool)
        before = measure_from_scratch(working, problem, factors).objective
        grown = regrow(working, problem, factors, before, (1, 0), pool)
    if grown is None:
        return
    exact = objective(
        tensor.astype(float), [A.astype(float) for A in grown.factors], problem.alpha, problem.beta, False
    )
    rounding = (1e-14 if dtype == "f8" else 1e-6) * float(np.sum(tensor**2))
    assert exact <= before + rounding
    assert grown.score.objective == pytest.approx(exact, abs=rounding)
    for A, kept in zip(grown.factors, factors, strict=True):
        assert A.dtype == kept.dtype
        assert (A[:, :alive] == kept[:, :alive]).all()


def overlapping_peaks() -> Float64:
    """Eight smooth components that overlap in every mode, as spectra do."""
    random = np.random.default_rng(0)
    factors = []
    for length in (24, 20, 18):
        place, centre, width = (
            np.linspace(0, 1, length)[:, None],
            random.uniform(0.1, 0.9, 8),
            random.uniform(0.08, 0.2, 8),
        )
        factors.append(np.exp(-(((place - centre) / width) ** 2) / 2))
    clean = model(factors)
    return np.asarray(clean + 0.01 * clean.mean() * random.random(clean.shape))


def test_components_that_an_exact_first_sweep_lost_come_back() -> None:
    """Exact updates of nearly equal columns leave few of them for any β, although each lowers the objective."""
    peaks = overlapping_peaks()
    rescued = 0
    for seed in range(2, 6):
        asked = Settings.recommended(8, beta=0.003, seed=seed, starts=1, regrow=False)
        swept = solve(peaks, asked.model_copy(update={"stop": Stop(max_iterations=1)}))
        plain, mended = solve(peaks, asked), solve(peaks, asked.model_copy(update={"regrow": True}))
        rescued += (swept.weights == 0).any() and plain.nonzero_components.all_modes < 8
        assert mended.nonzero_components.all_modes == 8
        assert mended.objective < 0.99 * plain.objective
    assert rescued == 4


def largest_beta(tensor: Float64) -> float:
    """At which the best single component still pays, see beta_for."""
    rank_one = solve(tensor, Settings.recommended(1, alpha=0.0))
    spread = np.prod([A.sum() / np.linalg.norm(A) for A in rank_one.factors])
    return beta_for(float(rank_one.weights[0]), float(spread), tensor.ndim)


@pytest.mark.parametrize("seed", range(3))
def test_zero_is_the_answer_only_where_no_single_component_pays(seed: int) -> None:
    """Just below the largest β a single component pays, though many that share the tensor do not."""
    largest, nothing = largest_beta(X), np.sum(X**2) / 2
    below = solve(X, Settings.recommended(6, beta=0.9 * largest, seed=seed))
    assert below.nonzero_components.all_modes == 1
    assert below.objective < nothing
    above = solve(X, Settings.recommended(6, beta=20 * largest, seed=seed))
    assert not any(A.any() for A in above.factors)
    assert above.objective == nothing
    assert "zero is the best answer at this beta" in above.warnings[0]
    assert f"one lowers the objective below a beta of about {largest:.3g}" in above.warnings[0]


def test_a_false_zero_is_reported_where_nothing_is_put_back() -> None:
    asked = Settings.recommended(6, beta=0.9 * largest_beta(X), regrow=False, starts=1)
    result = solve(X, asked)
    assert not any(A.any() for A in result.factors)
    assert "zero is not the best answer: one component lowers the objective" in result.warnings[0]
    assert not any("no single component was found" in warning for warning in result.warnings)


def test_given_factors_are_the_callers_choice() -> None:
    """No component is put back and no other start is tried, unless that is asked for."""
    initial = [np.where(np.arange(6) < 2, A, 0.0) for A in MADE.factors]
    kept = solve(X, Settings.recommended(6, beta=0.05), initial=initial)
    assert kept.nonzero_components.all_modes == 2
    assert kept.starts == ()
    assert "2 of 6 components are left, and whether more would" in kept.warnings[0]
    asked = solve(X, Settings.recommended(6, beta=0.05, regrow=True), initial=initial)
    assert asked.nonzero_components.all_modes == 6
    assert asked.objective < kept.objective


def test_what_was_in_vain_on_the_compressed_tensor_is_not_tried_on_the_whole_one() -> None:
    """It would take longer than the few exact sweeps that are left."""
    asked = Settings.recommended(9, beta=0.3, starts=1, accelerate="compress")
    states = list(sweeps(X, asked, threads=1))
    tried = [state.search.rounds for state in states if state.search is not None and state.phase == "exact"]
    assert len(tried) > 1
    assert tried[0] > 0
    assert len(set(tried)) == 1
    assert 0 < Result.of(states[-1]).nonzero_components.all_modes < 9
