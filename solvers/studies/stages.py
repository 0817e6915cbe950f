"""The steps of a choice: each takes the state after the last one, and returns the next."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from sparse_ncp.solvers.metrics import weights
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.studies.evidence.curve import PER_COMPONENT, unit_gain
from sparse_ncp.solvers.studies.evidence.prediction import Prediction, predict
from sparse_ncp.solvers.studies.evidence.replication import bootstrap, compare_halves
from sparse_ncp.solvers.studies.evidence.weighing import Weighing, conclude
from sparse_ncp.solvers.studies.fitting.candidates import Candidate, Chain, best_of, chain, exchange, lower
from sparse_ncp.solvers.studies.fitting.fits import descend_deviance, model, overfit
from sparse_ncp.solvers.studies.fitting.inputs import LARGEST_SHARE, Inputs
from sparse_ncp.solvers.studies.fitting.levels import SWEEPS, TOLERANCE, first_overfit
from sparse_ncp.solvers.studies.fitting.noise import Counts, likely_kind, without_counts
from sparse_ncp.solvers.studies.fitting.sparsity import SPARSITY_RUNS, matching_run, next_sparsity, run_with
from sparse_ncp.solvers.studies.settings import ChoiceSettings, Validation
from sparse_ncp.solvers.studies.state import BOOTSTRAPS, SPLITS, VIEWS, ChoiceState, View
from sparse_ncp.solvers.studies.validation import checks, run_check
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.zeros import Zeros

# Sweeps that lower the deviance of the models of counts.
DEVIANCE_SWEEPS = 200
# Each kind of step draws from random sequences of its own.
_OVERFIT, _EXCHANGE, _BOOTSTRAP, _HALVES, _HOLDOUT = range(5)

Outcome = TypeVar("Outcome")


def begin(inputs: Inputs, settings: ChoiceSettings) -> ChoiceState:
    """Return the state before the first step."""
    data = inputs.data
    count = data.entries.size
    kind = likely_kind(data.entries) if settings.noise == "auto" else settings.noise
    rank = min(settings.rank, int(LARGEST_SHARE * count / sum(data.X.shape)))
    other = None
    if inputs.other is not None:
        turned: Zeros = "missing" if settings.zeros == "readings" else "readings"
        other = begin(inputs.other, settings.model_copy(update={"zeros": turned, "validation": Validation()}))
    return ChoiceState(settings, data.X.shape, kind, inputs.unit, count, rank, other=other)


def overfit_step(inputs: Inputs, state: ChoiceState, pool: Threads) -> ChoiceState:
    """Begin a view with a first overfit, which also estimates the noise; then fit the other seeds."""
    if state.step == 0:
        place, is_clipped = len(state.views), state.kind == "clipped"
        random = _random(state, _OVERFIT, 0, place)
        scaling, data, fit = first_overfit(inputs.data, state.rank, is_clipped, place == 0, random)
        if place == 0 and state.kind == "counts" and state.settings.noise == "auto":
            expected = inputs.data.select(model(scaling.restore(fit.factors)))
            noise = Counts.estimate(inputs.data.entries, expected, fit.parameters)
            if not noise.is_plausible(inputs.data.entries, expected):  # a quantised instrument
                return replace(state, kind=without_counts(inputs.data.entries))
        view = View(scaling, data.deviation, chains=(chain(data, fit, state.largest + 1),))
        state = replace(state, views=(*state.views, view))
        return state.advance("exchange" if state.settings.seeds == 1 else None)
    data = Weighing(inputs.data, state).data

    def fit_seed(seed: int) -> Chain:
        start = overfit(data, state.rank, _random(state, _OVERFIT, seed), SWEEPS, TOLERANCE)
        return chain(data, start, state.largest + 1)

    made = _some(state, pool, state.settings.seeds, fit_seed)
    state = state.with_view(chains=(*state.view.chains, *made)).advance(steps=len(made))
    return state.advance("exchange") if state.step == state.settings.seeds else state


def exchange_step(inputs: Inputs, state: ChoiceState, pool: Threads) -> ChoiceState:
    judge = Weighing(inputs.data, state).judge
    best = exchange(judge, best_of(judge, state.view.chains), _random(state, _EXCHANGE))
    return state.with_view(best=best).advance("bootstrap")


def bootstrap_step(inputs: Inputs, state: ChoiceState, pool: Threads) -> ChoiceState:
    data = Weighing(inputs.data, state).data
    found = _some(
        state, pool, BOOTSTRAPS, lambda step: bootstrap(data, state.view.best, _random(state, _BOOTSTRAP, step))
    )
    state = state.with_view(bootstraps=(*state.view.bootstraps, *found)).advance(steps=len(found))
    return state.advance("halves") if state.step == BOOTSTRAPS else state


def halves_step(inputs: Inputs, state: ChoiceState, pool: Threads) -> ChoiceState:
    data, best = Weighing(inputs.data, state).data, state.view.best
    made = _some(
        state, pool, SPLITS, lambda step: compare_halves(data, best, state.rank, _random(state, _HALVES, step))
    )
    kept = [found for found in made if found is not None]
    state = state.with_view(halves=(*state.view.halves, *kept)).advance(steps=len(made))
    return state.advance("holdout") if state.step == SPLITS else state


def holdout_step(inputs: Inputs, state: ChoiceState, pool: Threads) -> ChoiceState:
    """Leave out single entries, then fibres along each mode."""
    judge, best, steps = Weighing(inputs.data, state).judge, state.view.best, len(state.shape) + 1

    def leave_out(step: int) -> Prediction | None:
        return predict(judge, best, state.rank, step - 1 if step else None, _random(state, _HOLDOUT, step))

    made = _some(state, pool, steps, leave_out)
    kept = [found for found in made if found is not None]
    state = state.with_view(predictions=(*state.view.predictions, *kept)).advance(steps=len(made))
    if state.step < steps:
        return state
    if len(state.views) < VIEWS:
        return state.advance("overfit")
    return state.advance("deviance" if state.kind == "counts" else "refit")


def deviance_step(inputs: Inputs, state: ChoiceState, pool: Threads) -> ChoiceState:
    """Fit counts to the lowest deviance, from the least-squares models of both views."""
    weighing = Weighing(inputs.data, state)

    def fit_number(step: int) -> Candidate:
        ends = [
            descend_deviance(
                inputs.data, view.scaling.restore(view.best[step + 1].factors), DEVIANCE_SWEEPS, weighing.counts
            )
            for view in state.views
        ]
        one, other = (Candidate(factors, weighing.deviance(factors)) for factors in ends)
        return lower(one, other)

    made = _some(state, pool, state.steps, fit_number)
    found = {state.step + place + 1: candidate for place, candidate in enumerate(made)}
    steps = state.steps
    state = replace(state, likeliest={**state.likeliest, **found}).advance(steps=len(made))
    return state.advance("refit") if state.step == steps else state


def refit_step(inputs: Inputs, state: ChoiceState, pool: Threads) -> ChoiceState:
    suggestion, candidate = Weighing(inputs.data, state).suggested()
    return replace(state, suggestion=suggestion, chosen=candidate).advance("sparsity")


def sparsity_step(inputs: Inputs, state: ChoiceState, pool: Threads) -> ChoiceState:
    """Run with a sparsity between the noise and the weakest component, narrowed by the earlier runs."""
    if state.chosen is None or matching_run(state.sparsity_runs, state.suggestion) or state.step == SPARSITY_RUNS:
        return state.advance("validate" if state.other is None else "zeros")
    noise = math.sqrt(PER_COMPONENT * unit_gain(state.shape) / state.observed) * Weighing(inputs.data, state).deviation
    weakest = float(weights(state.chosen.factors).min()) / math.sqrt(state.observed)
    sparsity = next_sparsity(state.sparsity_runs, state.suggestion, weakest, noise)
    asked = state.settings
    settings = Settings.recommended(
        rank=asked.rank, sparsity=sparsity, seed=asked.seed, missing=asked.missing, negative=asked.negative
    )
    chosen = _as_given(state.chosen.factors, state.settings.samples_mode)
    norm = inputs.unit * math.sqrt(state.observed)
    run = run_with(inputs.tensor, settings, inputs.mask, chosen, norm, pool.count)
    return replace(state, sparsity_runs=(*state.sparsity_runs, run)).advance()


def zeros_step(inputs: Inputs, state: ChoiceState, pool: Threads) -> ChoiceState:
    """Choose with the zeros that look like missing readings taken the other way, one step at a time."""
    if inputs.other is None or state.other is None or state.other.stage == "sparsity":  # its model is fitted
        return state.advance("validate")
    return replace(state, other=STAGES[state.other.stage](inputs.other, state.other, pool))


def validate_step(inputs: Inputs, state: ChoiceState, pool: Threads) -> ChoiceState:
    asked, planned = state.settings.validation, checks(state.settings.validation, state.numbers_to_validate)
    if len(state.checked) == len(planned):
        outcome = conclude(inputs, state, pool)
        factors = _as_given(outcome.factors, state.settings.samples_mode)
        return replace(state, stage="done", outcome=replace(outcome, factors=factors))
    check = planned[len(state.checked)]
    found = run_check(inputs.tensor, asked, check, state.settings, pool.count, mask=inputs.mask)
    return replace(state, checked=(*state.checked, found)).advance()


STAGES: Mapping[str, Callable[[Inputs, ChoiceState, Threads], ChoiceState]] = {
    "overfit": overfit_step,
    "exchange": exchange_step,
    "bootstrap": bootstrap_step,
    "halves": halves_step,
    "holdout": holdout_step,
    "deviance": deviance_step,
    "refit": refit_step,
    "sparsity": sparsity_step,
    "zeros": zeros_step,
    "validate": validate_step,
}


def _some(state: ChoiceState, pool: Threads, steps: int, work: Callable[[int], Outcome]) -> list[Outcome]:
    """Do the next steps of a stage, one per thread: what each gives does not depend on the others."""
    return pool.each(work, range(state.step, min(steps, state.step + pool.count)))


def _random(state: ChoiceState, kind: int, step: int = 0, view: int | None = None) -> np.random.Generator:
    place = len(state.views) - 1 if view is None else view
    return np.random.default_rng(np.random.SeedSequence(state.settings.seed, spawn_key=(kind, place, step)))


def _as_given(factors: tuple[Float64, ...], samples_mode: int) -> tuple[Float64, ...]:
    """Return factors in the order of the tensor's modes, given those with the samples first."""
    samples, *others = factors
    return (*others[: samples_mode - 1], samples, *others[samples_mode - 1 :])
