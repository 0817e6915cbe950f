"""Several starts are tried and the lowest continues; a run can be resumed in any phase to the same bits."""

import io
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import Clock, Result, Settings, State, solve, sweeps, synthetic
from sparse_ncp.solvers.bcd.objective import ROUNDING
from sparse_ncp.solvers.bcd.warnings import RIVAL, SAME_COMPONENT
from sparse_ncp.solvers.settings import Accelerate
from tests.solvers.literal import objective

X = synthetic.planted((24, 20, 18), rank=4, snr_db=20.0).tensor


def asked(**fields: Any) -> Settings:
    return Settings.recommended(6, **{"beta": 0.3, **fields})


def untimed(state: State) -> dict[str, bytes]:
    """All that is saved of a state, bit for bit, but for the seconds."""
    with np.load(io.BytesIO(state.to_bytes())) as stored:
        return {name: array.tobytes() for name, array in stored.items() if name != "seconds"}


def by_start(state: State) -> Iterator[list[float]]:
    """The objectives of every start, and of the run that goes on from one."""
    for start in set(state.history.start):
        yield [value for value, of in zip(state.history.objective, state.history.start, strict=True) if of == start]


@pytest.mark.parametrize("accelerate", ["none", "compress"])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("mode", ["best", "all"])
def test_a_run_is_resumed_to_the_same_bits_after_every_iteration(accelerate: Accelerate, dtype: str, mode: str) -> None:
    """Every state, saved and restored, has the same successor, so every one leads to the same end."""
    tensor = X[:16, :15, :14].astype(dtype)
    wanted = asked(accelerate=accelerate, starts=3, starts_mode=mode, stop={"tolerance": 1e-4, "patience": 2})
    states = list(sweeps(tensor, wanted, threads=1))
    assert {state.phase_at(state.iteration) for state in states} >= {"start", "exact"}
    for state, following in pairwise(states):
        resumed = sweeps(tensor, wanted, resume=State.from_bytes(state.to_bytes()), threads=1)
        assert untimed(next(resumed)) == untimed(following)
    for state in states[:-1:20]:
        *_, last = sweeps(tensor, wanted, resume=State.from_bytes(state.to_bytes()), threads=1)
        assert untimed(last) == untimed(states[-1])
    assert list(sweeps(tensor, wanted, resume=State.from_bytes(states[-1].to_bytes()))) == []


@pytest.mark.parametrize("accelerate", ["none", "compress"])
def test_threads_do_not_show(accelerate: Accelerate) -> None:
    ours, theirs = (list(sweeps(X, asked(accelerate=accelerate), threads=threads))[-1] for threads in (1, 2))
    assert untimed(ours) == untimed(theirs)


@pytest.mark.parametrize("beta", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_objective_never_rises_within_a_start_nor_from_the_one_that_goes_on(beta: float, seed: int) -> None:
    *_, last = sweeps(X, asked(beta=beta, seed=seed))
    noise = ROUNDING[X.dtype] * np.sum(X**2)
    runs = list(by_start(last))
    assert len(runs) > 2
    for values in runs:
        assert np.diff(values).max(initial=-np.inf) <= noise
    lowest = min(min(values) for values in runs)
    assert last.history.objective[-1] <= lowest + noise


def test_the_lowest_start_goes_on_and_the_table_lists_all() -> None:
    result = solve(X, asked(starts=5))
    assert [outcome.start for outcome in result.starts] == list(range(1, len(result.starts) + 1))
    assert 4 <= len(result.starts) <= 5  # four that agree are enough
    assert result.objective <= min(outcome.objective for outcome in result.starts) * (1 + 1e-12)
    for outcome in result.starts:
        assert outcome.iterations == result.history.start.count(outcome.start)
        assert 0 < outcome.components <= 6
    assert result.history.start[-1] is None


def test_every_start_is_compared_with_the_one_that_goes_on() -> None:
    """With as many components as were planted, starts agree; with more, some have components that others lack."""
    wanted = {"negative": "keep", "diagnose": False}
    agree = solve(X, Settings.recommended(4, **wanted))
    assert all(outcome.congruence is not None and outcome.congruence > 0.98 for outcome in agree.starts)
    assert not any("with other components" in warning for warning in agree.warnings)
    differ = solve(X, Settings.recommended(6, **wanted))
    chosen = min(differ.starts, key=lambda outcome: outcome.objective)
    assert chosen.congruence == pytest.approx(1.0)
    rivals = [
        outcome.start
        for outcome in differ.starts
        if outcome.congruence is not None
        and outcome.congruence < SAME_COMPONENT
        and outcome.objective <= chosen.objective * (1 + RIVAL)
    ]
    assert rivals
    (warning,) = (warning for warning in differ.warnings if "with other components" in warning)
    assert str(rivals[0]) in warning
    assert "stability=True" in warning


def test_a_run_that_ends_among_its_trial_starts_compares_none() -> None:
    *_, last = sweeps(X, asked(stop={"max_seconds": 1e-9}))
    assert all(outcome.congruence is None for outcome in Result.of(last).starts)


def test_all_starts_go_to_the_end_where_asked() -> None:
    stop = {"tolerance": 1e-5, "patience": 3}
    few = solve(X, asked(starts=4, stop=stop))
    every = solve(X, asked(starts=4, starts_mode="all", stop=stop))
    assert len(every.starts) == 4
    assert every.objective <= few.objective * (1 + 1e-4)
    for outcome in every.starts:  # each has met the rule itself
        line = [
            o for o, start in zip(every.history.objective, every.history.start, strict=True) if start == outcome.start
        ]
        assert line[-1] == outcome.objective
        assert abs(line[-1] - line[-4]) < 3 * 1e-5 * line[-4]


def test_max_iterations_counts_the_run_that_goes_on() -> None:
    *_, last = sweeps(X, asked(stop={"tolerance": 0.0, "max_iterations": 7}))
    assert last.stop_reason == "max_iterations"
    assert last.history.start.count(None) == 7
    assert last.trial_iterations == last.iteration - 7 > 0


@pytest.mark.parametrize("accelerate", ["none", "compress"])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_a_run_that_ends_among_its_trial_starts_gives_the_lowest_one(accelerate: Accelerate, dtype: str) -> None:
    """And its numbers are those of its factors, on the tensor itself."""
    tensor = X.astype(dtype)
    wanted = asked(accelerate=accelerate, stop={"max_seconds": 1e4})
    third = next(state for state in sweeps(tensor, wanted) if state.history.start[-1] == 3)
    ended = next(sweeps(tensor, wanted, resume=third, clock=Clock(spent_seconds=1e5)))
    result = Result.of(ended)
    assert (result.stop_reason, result.iterations) == ("max_seconds", third.iteration + 1)
    exact = objective(tensor.astype(float), [A.astype(float) for A in result.factors], (1e-6,) * 3, (0.3,) * 3, False)
    assert result.objective == pytest.approx(exact, rel=1e-9 if dtype == "f8" else 1e-5)
    assert result.factors[0].dtype == tensor.dtype
    assert result.objective <= 1.05 * min(outcome.objective for outcome in result.starts)


def test_convergence_in_a_trial_start_does_not_end_the_run() -> None:
    """A rule this loose holds in the first start already."""
    result = solve(X, asked(starts=3, stop={"criterion": "relative_error", "tolerance": 0.5, "patience": 1}))
    assert len(result.starts) == 3
    assert result.history.start[-1] is None


def test_nndsvd_makes_its_first_sweeps_without_beta_and_shows_none_of_them() -> None:
    """With β from the first sweep on, the faint components of NNDSVD are lost."""
    wanted = asked(beta=0.9, init="nndsvd", starts=1)
    states = list(sweeps(X, wanted, threads=1))
    assert states[0].iteration == 1
    assert states[0].objective == pytest.approx(objective(X, states[0].factors, (1e-6,) * 3, (0.9,) * 3, False))
    bare = solve(X, asked(beta=0.9, init="nndsvd", starts=1, regrow=False), threads=1)
    assert states[0].objective < bare.history.objective[0]


def test_one_of_several_starts_begins_from_singular_vectors() -> None:
    """So it hardly depends on the seed, as a random one does."""
    runs = [solve(X, asked(seed=seed, starts=2, extrapolate=False), threads=1).history for seed in (1, 2)]
    first, second = ([run.objective[run.start.index(start)] for run in runs] for start in (1, 2))
    assert 4 * abs(second[0] - second[1]) < abs(first[0] - first[1])


def test_a_start_from_singular_vectors_is_followed_by_random_ones() -> None:
    result = solve(X, asked(init="nndsvd", starts=3, extrapolate=False, regrow=False))
    first = [result.history.objective[result.history.start.index(start)] for start in (1, 2, 3)]
    assert len(set(first)) == 3


def test_the_time_limit_ends_a_run_at_the_row_that_reaches_it() -> None:
    """A later attempt sees from that row whether the run ended there: put-back, too, is on the clock by then."""
    stop = {"max_seconds": 1e-9, "max_iterations": 100}
    settings = Settings.recommended(6, beta=0.05, starts=1, accelerate="none", stop=stop)
    states = list(sweeps(X, settings, clock=Clock(enforce_after_iteration=15)))
    assert [state.stop_reason for state in states] == [None] * 15 + ["max_seconds"]
    assert states[-1].search is not None
    assert states[-1].search.rounds > 0
