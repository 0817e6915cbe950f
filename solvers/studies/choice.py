"""Choose the number of components: `choose` yields a state after every step, the last of which has the outcome.

Overfit without a penalty, drop the cheapest component again and again, exchange between seeds, then take the least
loss plus 0.95 k u at the noise that the overfit leaves; a parametric bootstrap measures how sure that is.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.loop import solve
from sparse_ncp.solvers.errors import AdviceWarning, InvalidInput
from sparse_ncp.solvers.metrics import DEAD_SHARE, weights
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.studies import rule
from sparse_ncp.solvers.studies.advice import Advice, Criteria, Evidence, advise
from sparse_ncp.solvers.studies.fitting.candidates import (
    KEPT,
    POLISHED,
    Candidate,
    Judge,
    agreement,
    best_of,
    chain,
    exchange,
    first_overfit,
    polished,
    similarity,
    simulated_gain,
)
from sparse_ncp.solvers.studies.fitting.fits import Data, Factors, model
from sparse_ncp.solvers.studies.fitting.noise import Counts, estimate, likely_kind, without_counts
from sparse_ncp.solvers.studies.settings import ChoiceSettings
from sparse_ncp.solvers.studies.state import (
    EXCHANGES,
    MOST_STEPS_UP,
    SPARSITY_RUNS,
    Choice,
    ChoiceState,
    Point,
    SparsityRun,
    Stage,
)
from sparse_ncp.solvers.studies.validation import check_validation, checks, run_check, validated
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
from sparse_ncp.solvers.tensor.validation import prepare_tensor

SIMULATIONS = 12
# The similarity from which a sparsity counts as keeping just the chosen components.
SAME_COMPONENTS = 0.9
LEAST_SPARSITY, MOST_SPARSITY = 1e-6, 0.9
# An overfit has at most this fraction of the tensor's entries as parameters, or it would fit the noise.
LARGEST_SHARE = 1 / 4
# Cosine from which seeds agree on a model.
AGREED = 0.9
# Each kind of step draws from a random sequence of its own.
_OVERFIT, _EXCHANGE, _POLISH, _BOOTSTRAP, _RESIDUAL = range(5)


def choose(
    tensor: NDArray[Any],
    settings: ChoiceSettings | None = None,
    *,
    resume: ChoiceState | None = None,
    threads: int | None = None,
) -> Iterator[ChoiceState]:
    """Choose the number of components, one step at a time.

    Computes in double precision, and needs about ten times the memory of the tensor.

    Parameters
    ----------
    tensor
        The tensor to decompose, without missing entries.
    settings
        How to choose; the defaults suit most tensors.
    resume
        A state to resume from, as an earlier call yielded it for the same tensor and settings.
    threads
        The number of threads; all available cores by default.

    Yields
    ------
    ChoiceState
        The state after every step. The last one has the outcome.

    Examples
    --------
    >>> from sparse_ncp import synthetic
    >>> from sparse_ncp.solvers.studies import ChoiceSettings, choose
    >>> tensor = synthetic.planted((20, 10, 8), rank=2).tensor
    >>> *_, last = choose(tensor, ChoiceSettings(rank=4, seeds=2))
    >>> last.outcome.advice.suggestion >= 1
    True
    """
    with Threads(threads) as pool:
        with single_threaded_blas():
            unit = _root_mean_square(tensor, pool)
            tensor = np.asarray(tensor)
            X = np.ascontiguousarray(tensor, np.float64) / unit
            if resume is None:
                state = _begin(X, unit, settings or ChoiceSettings())
            else:
                state = _resumed(resume, X, unit, settings)
        while state.stage != "done":
            with single_threaded_blas():
                state = _advance(tensor, X, state, pool)
            yield state


def _root_mean_square(tensor: NDArray[Any], pool: Threads) -> float:
    """Return the root mean square of a complete tensor; InvalidInput if it cannot be decomposed."""
    checked = prepare_tensor(tensor, "float64", pool)
    if checked.missing is not None:
        remedy = "fill them first, or compare ranks with validate.holdout"
        raise InvalidInput("tensor", "has entries that were not observed", remedy)
    return checked.norm / math.sqrt(math.prod(checked.shape))


def _begin(X: Float64, unit: float, settings: ChoiceSettings) -> ChoiceState:
    check_validation(settings.validation, X.shape)
    allowed = int(LARGEST_SHARE * X.size / sum(X.shape))
    if allowed < 2:
        remedy = "use a larger tensor: even two components would fit the noise of this one"
        raise InvalidInput("tensor", f"of shape {X.shape} is too small to choose the number of components", remedy)
    kind = likely_kind(X) if settings.noise == "auto" else settings.noise
    return ChoiceState(settings, X.shape, kind, unit, min(settings.rank, allowed))


def _resumed(state: ChoiceState, X: Float64, unit: float, settings: ChoiceSettings | None) -> ChoiceState:
    if (state.shape, state.unit) != (X.shape, unit):
        raise InvalidInput(
            "resume", f"was saved for another tensor, of shape {state.shape}", "pass the tensor it belongs to"
        )
    if settings is not None and settings != state.settings:
        raise InvalidInput("resume", "was saved with other settings", "omit the settings, or pass the same")
    return state


def _advance(tensor: NDArray[Any], X: Float64, state: ChoiceState, pool: Threads) -> ChoiceState:
    data = Data.of(X, state.kind, pool)
    if state.stage == "overfit":
        return _overfit(X, data, state)
    judge = _judge(data, state)
    if state.stage in _STEPS:
        return _STEPS[state.stage](judge, state)
    step = _find_sparsity if state.stage == "sparsity" else _validate
    return step(tensor, judge, state, pool.count)


def _next(state: ChoiceState, stage: Stage | None) -> ChoiceState:
    """Advance to another stage, or with None to the next step of this one."""
    return replace(state, step=state.step + 1) if stage is None else replace(state, stage=stage, step=0)


def _overfit(X: Float64, data: Data, state: ChoiceState) -> ChoiceState:
    """Fit one seed, and drop its components one by one. The first fit estimates the noise, which clipping needs."""
    fit, noise = first_overfit(data, state.kind, state.rank, _random(state, _OVERFIT, state.step))
    is_guess = state.settings.noise == "auto" and state.noise is None
    if is_guess and isinstance(noise, Counts) and not noise.is_plausible(X, model(fit.factors)):
        return replace(state, kind=without_counts(X))  # a quantised instrument
    noise = state.noise or noise
    chains = (*state.chains, chain(data, noise, fit, state.largest))
    state = _next(replace(state, chains=chains, noise=noise), None)
    if len(chains) < state.settings.seeds:
        return state
    return _next(replace(state, best=best_of(_judge(data, state), chains)), "exchange")


def _judge(data: Data, state: ChoiceState) -> Judge:
    """Judge fits by the noise that the best overfit leaves."""
    lowest = min((chain.overfit for chain in state.chains), key=lambda fit: fit.error)
    reference = model(lowest.factors)
    noise = estimate(state.kind, data.X, reference, lowest.parameters)
    return Judge(data, noise, noise.variance(reference))


def _exchange(judge: Judge, state: ChoiceState) -> ChoiceState:
    best = exchange(judge, state.best, _random(state, _EXCHANGE, state.step))
    return _next(replace(state, best=best), "polish" if state.step + 1 == EXCHANGES else None)


def _polish(judge: Judge, state: ChoiceState) -> ChoiceState:
    components, best = _curve(judge, state.best).best(), dict(state.best)
    for k in range(components + 2, components - 2, -1):
        if k in best:
            best[k] = polished(judge, best, state.chains, k, _random(state, _POLISH, k))
    return _next(replace(state, best=best, components=_curve(judge, best).best()), "bootstrap")


def _curve(judge: Judge, best: Mapping[int, Candidate]) -> rule.Curve:
    u = rule.unit_gain(judge.data.X.shape)
    return rule.Curve({0: judge.loss_of_nothing() / u} | {k: found.loss / u for k, found in best.items()})


def _bootstrap(judge: Judge, state: ChoiceState) -> ChoiceState:
    """Simulate the gain on noise, first at the chosen number, which may then move up, then at one less."""
    k, curve = state.components, _curve(judge, state.best)
    wanted = [j for j in (k, k - 1) if 0 < j < curve.largest and j not in state.nulls]
    if k == 0 or not wanted:
        return _next(state, "refit")
    u, random = rule.unit_gain(judge.data.X.shape), _random(state, _BOOTSTRAP, wanted[0])
    gains = [simulated_gain(judge, state.best[wanted[0]], random) / u for _ in range(SIMULATIONS)]
    null = rule.Null(float(np.mean(gains)), float(np.std(gains, ddof=1)))
    state = _next(replace(state, nulls={**state.nulls, wanted[0]: null}), None)
    if wanted[0] == k and state.steps_up < MOST_STEPS_UP and rule.steps_up(curve, k, state.nulls[k]):
        return replace(state, components=k + 1, steps_up=state.steps_up + 1)
    return state


def _refit(judge: Judge, state: ChoiceState) -> ChoiceState:
    advice = _advice(judge, state)
    suggestion, best = advice.suggestion, dict(state.best)
    fitted = polished(judge, best, state.chains, suggestion, _random(state, _POLISH, suggestion, 1))
    if fitted.loss < best[suggestion].loss:
        best[suggestion] = fitted
    state = replace(state, best=best, suggestion=suggestion)
    seeds_agreeing, seeds_disagreeing = _count_agreeing_seeds(judge, state)
    return _next(replace(state, seeds_agreeing=seeds_agreeing, seeds_disagreeing=seeds_disagreeing), "sparsity")


def _count_agreeing_seeds(judge: Judge, state: ChoiceState) -> tuple[int, int]:
    """Count the seeds whose own models converge to the best one, and those that reach another with as low a loss."""
    k = max(1, state.components)
    best, near = state.best[k], rule.NEAR * rule.unit_gain(state.shape)

    def found(factors: Factors) -> tuple[bool, bool]:
        """Return whether the model has as low a loss, and whether it has the same components."""
        is_low = is_same = False
        for effort in (KEPT, POLISHED):  # most converge with little effort
            fit = judge.fitted(factors, effort)
            is_low = fit.loss - best.loss < near
            is_same = similarity(fit.factors, best.factors) > rule.ALIKE
            if is_low and is_same:
                break
            factors = fit.factors
        return is_low, is_same

    ends = [found(chain.models[k]) for chain in state.chains]
    return ends.count((True, True)), ends.count((True, False))


_STEPS: Mapping[Stage, Callable[[Judge, ChoiceState], ChoiceState]] = {
    "exchange": _exchange,
    "polish": _polish,
    "bootstrap": _bootstrap,
    "refit": _refit,
}


def _evidence(judge: Judge, state: ChoiceState) -> Evidence:
    curve, k = _curve(judge, state.best), state.components
    shown = state.best[max(1, k)].factors
    agreements = _agreements(state)
    agreed = next((k - 1 for k in sorted(agreements) if agreements[k] <= AGREED), max(agreements))
    deviation = math.sqrt(float(judge.variance.mean()))
    return Evidence(
        curve=curve,
        chosen=k,
        rule_confidence=rule.confidence(curve, k, state.nulls),
        nulls=state.nulls,
        residuals=rule.Residuals.of(judge.data.X, model(shown), judge.noise, _random(state, _RESIDUAL)),
        criteria=Criteria(
            gain=k,
            cliff=curve.cliff(min((null.mean for null in state.nulls.values()), default=rule.NOISE_GAIN)),
            agreement=agreed,
        ),
        seeds=len(state.chains),
        seeds_agreeing=state.seeds_agreeing,
        seeds_disagreeing=state.seeds_disagreeing,
        weakest_visible=math.sqrt(rule.PER_COMPONENT * rule.unit_gain(state.shape)) * deviation * state.unit,
        variation=math.sqrt(judge.data.X.size) * float(judge.data.X.std()) * state.unit,
        rank_asked=state.settings.rank,
        rank=state.rank,
    )


def _agreements(state: ChoiceState) -> dict[int, float]:
    return {k: agreement([chain.models[k] for chain in state.chains]) for k in sorted(state.best)}


def _advice(judge: Judge, state: ChoiceState) -> Advice:
    evidence = _evidence(judge, state)
    return advise(evidence, state.best[state.suggestion].factors if state.suggestion else None)


def _find_sparsity(tensor: NDArray[Any], judge: Judge, state: ChoiceState, threads: int) -> ChoiceState:
    """Run with a sparsity between the noise and the weakest component, narrowed by the earlier runs."""
    chosen = state.best[state.suggestion].factors
    if _leaves_just(state) or state.step == SPARSITY_RUNS:
        return _next(state, "validate")
    sparsity = _next_sparsity(judge, state, chosen)
    settings = Settings.recommended(rank=state.settings.rank, sparsity=sparsity, seed=state.settings.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)
        result = solve(tensor, settings, threads=threads)
    alive = result.weights > DEAD_SHARE * state.unit * math.sqrt(judge.data.X.size)
    left = tuple(A[:, alive].astype(np.float64) for A in result.factors)
    match = similarity(left, chosen) if left[0].shape[1] == state.suggestion else 0.0
    run = SparsityRun(sparsity, result.resolved.beta[0], int(alive.sum()), match)
    return _next(replace(state, sparsity_runs=(*state.sparsity_runs, run)), None)


def _leaves_just(state: ChoiceState) -> SparsityRun | None:
    """Return the run that kept just the chosen components; None if there is none."""
    fitting = [run for run in state.sparsity_runs if run.components == state.suggestion and run.match > SAME_COMPONENTS]
    return max(fitting, key=lambda run: run.match, default=None)


def _next_sparsity(judge: Judge, state: ChoiceState, chosen: Factors) -> float:
    """Return the geometric mean of the largest sparsity that kept too many components and the smallest that did not."""
    norm = math.sqrt(judge.data.X.size)  # of a tensor in units of its root mean square
    weakest = float(weights(chosen).min()) / norm
    noise = math.sqrt(rule.PER_COMPONENT * rule.unit_gain(state.shape) * float(judge.variance.mean())) / norm
    low = max((run.sparsity for run in state.sparsity_runs if run.components > state.suggestion), default=None)
    high = min((run.sparsity for run in state.sparsity_runs if run.components <= state.suggestion), default=None)
    if low is None:
        low = min(noise, (weakest if high is None else high) / 4)
    if high is None:
        high = max(weakest, 2 * low)
    return float(np.clip(math.sqrt(low * high), LEAST_SPARSITY, MOST_SPARSITY))


def _validate(tensor: NDArray[Any], judge: Judge, state: ChoiceState, threads: int) -> ChoiceState:
    asked, planned = state.settings.validation, checks(state.settings.validation, state.numbers_to_validate)
    if len(state.checked) == len(planned):
        return replace(state, stage="done", outcome=_conclude(judge, state))
    found = run_check(tensor, asked, planned[len(state.checked)], state.settings.seed, threads)
    return _next(replace(state, checked=(*state.checked, found)), None)


def _conclude(judge: Judge, state: ChoiceState) -> Choice:
    advice, run, curve = _advice(judge, state), _leaves_just(state), _curve(judge, state.best)
    if run is None:
        advice = replace(advice, reason=f"{advice.reason}; no sparsity that was tried keeps just these components")
    else:
        advice = replace(advice, sparsity=run.sparsity, beta=run.beta)
    chosen = state.best[state.suggestion].factors
    agreements = _agreements(state)
    points = tuple(
        Point(
            components=k,
            relative_error=_relative_error(judge, candidate.factors),
            gain=curve.gain(k - 1),
            null=state.nulls.get(k - 1),
            agreement=agreements[k],
        )
        for k, candidate in sorted(state.best.items())
    )
    return Choice(
        advice=advice,
        factors=tuple(A * state.unit ** (1 / len(chosen)) for A in chosen),
        relative_error=_relative_error(judge, chosen),
        noise=state.kind,
        noise_level=math.sqrt(float(judge.variance.mean())),
        points=points,
        validated=validated(state.settings.validation, state.numbers_to_validate, state.checked),
    )


def _relative_error(judge: Judge, factors: Factors) -> float:
    return float(np.linalg.norm(judge.data.X - model(factors)) / np.linalg.norm(judge.data.X))


def _random(state: ChoiceState, *key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(state.settings.seed, spawn_key=key))
