"""Warnings of a result: what a reader of its factors should know, each with a remedy."""

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

from sparse_ncp.solvers.bcd.penalties import beta_for
from sparse_ncp.solvers.bcd.problem import Problem, resolve
from sparse_ncp.solvers.bcd.state import State
from sparse_ncp.solvers.diagnostics.diagnose import Diagnostics, UnobservedDiagnostics
from sparse_ncp.solvers.diagnostics.outliers import SampleDiagnostics
from sparse_ncp.solvers.metrics import DEAD_SHARE, NonzeroComponents, weights
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.tensor.exclusion import exclude_with
from sparse_ncp.solvers.tensor.products import Array

# Gives the label of an index of a mode, counted from 1, or the index itself.
Name: TypeAlias = Callable[[int, int], int | str]
# With a relative error this close to 1, the model is zero.
NOTHING = 1e-9
# A penalty with a smaller share of the objective hardly changes the result.
FAINT = 1e-3
# A start fits as well as the chosen one if its objective is within this share. With a congruence below this, it has a
# component that the chosen one lacks.
RIVAL, SAME_COMPONENT = 5e-3, 0.7
# Begins the note of a run without regrow whose components all vanished although one would lower the objective.
ZERO_IS_NOT_BEST = "zero is not the best answer"
# A model is warned of if it exceeds the largest reading this many times over missing entries.
EXTRAPOLATED = 3.0
# The sparsity that is proposed where readings do not determine a component.
SMALL_SPARSITY = 0.002


def index_itself(mode: int, index: int) -> int | str:
    """Name an index by its number."""
    return index


def run_warnings(
    state: State, factors: tuple[Array, ...], objective: float, relative_error: float, counts: NonzeroComponents
) -> list[str]:
    """Return warnings about a run: its notes, doubtful settings, and components that are lost or weak."""
    problem, rank = resolve(state.settings, state.weights, state.fixed), state.settings.rank
    living = int((weights(factors) > DEAD_SHARE * state.tensor_norm).sum())
    found = [*state.notes, *problem.advice()]
    is_zero = living == 0 or abs(relative_error - 1) < NOTHING
    rivals = _rival_starts(state)
    if rivals:
        starts = f"start {rivals[0]} fits" if len(rivals) == 1 else f"starts {', '.join(map(str, rivals))} fit"
        found.append(
            f"{starts} as well with other components (objective within {RIVAL:.1%}): the tensor does not decide "
            "between them; see which components stay with stability=True, or try fewer components"
        )
    if any(note.startswith(ZERO_IS_NOT_BEST) for note in state.notes):
        return found
    if is_zero:
        found.append(_every_component_is_zero(state, problem))
    elif objective > state.tensor_norm**2 / 2:
        found.append("the objective is higher than without any component: lower beta, or try other seeds")
    elif living < rank:
        found.append(_some_are_lost(state, problem, living))
    elif state.settings.sparsity is not None and living == rank > 1:
        weakest = float(weights(factors).min()) / state.tensor_norm
        found.append(
            f"sparsity removed no component: the weakest of the {rank} has {weakest:.3g} of the norm of the tensor; if "
            "that is too weak to be real, raise sparsity, and otherwise there may be more of them: try a higher rank"
        )
    elif counts.all_modes == 0:
        found.append("every component lies below sparsity_threshold; lower it, or scale the tensor up")
    if any(problem.beta) and problem.sparsity_penalty(factors) < FAINT * objective and not is_zero:
        found.append("this beta makes up less than 0.1 % of the objective: it hardly changes the result; raise it")
    return found


def _rival_starts(state: State) -> list[int]:
    """Return the trial starts with as low an objective as the chosen one, and a component that it lacks."""
    if state.search is None or state.search.is_trial:
        return []
    outcomes = state.search.outcomes
    chosen = next((one.objective for one in outcomes if one.start == state.search.start), math.inf)
    return [
        one.start
        for one in outcomes
        if one.congruence is not None and one.congruence < SAME_COMPONENT and one.objective <= chosen * (1 + RIVAL)
    ]


def _every_component_is_zero(state: State, problem: Problem) -> str:
    """Explain why every component is zero, and below which beta one would not be.

    Zero is the best answer if and only if no single component lowers the objective; a fit of one component shows it.
    """
    largest, order = state.largest_beta, len(state.factors)
    if largest is None:  # the run was ended before that was tried
        instead = "" if problem.has_fixed else ", or give sparsity instead"
        remedy = f"lower beta{instead}" if any(problem.beta) else "lower alpha"
        return f"every component is zero: the penalty outweighs the tensor; {remedy}"
    beta = math.prod(problem.beta) ** (1 / order)
    if beta >= beta_for(state.tensor_norm, 1.0, order):
        verdict = "zero is the best answer at this beta"
    else:
        verdict = "no single component was found that lowers the objective at this beta"
    return f"every component is zero: {verdict}; one lowers the objective below a beta of about {largest:.3g}: lower it"


def _some_are_lost(state: State, problem: Problem, living: int) -> str:
    kept = f"{living} of {state.settings.rank} components {'is' if living == 1 else 'are'} left"
    if state.stop_reason == "exact":
        return f"{kept}: the others do not lower the objective of this tensor"
    if state.search is not None and state.search.regrow:
        if state.stop_reason != "tolerance":
            return f"{kept}, and the run ended before it was settled whether more would lower the objective"
        return (
            f"{kept}: putting components back did not lower the objective, so the tensor supports no more at this "
            "penalty; lower the penalty if you expect weaker ones"
        )
    if problem.can_regrow:
        remedy = "set regrow, which the recommended preset does"
    else:
        remedy = "compare other starts with starts=8" + (
            "" if state.settings.init == "nndsvd" else ", or init='nndsvd'"
        )
    return f"{kept}, and whether more would lower the objective was not tried: {remedy}"


def diagnostic_warnings(diagnostics: Diagnostics, settings: Settings, name: Name = index_itself) -> list[str]:
    """Return warnings about outlying samples, and about components that the readings do not determine."""
    found = [] if diagnostics.samples is None else list(_outlier_advice(diagnostics.samples, settings, name))
    unobserved = diagnostics.unobserved
    if unobserved is not None and unobserved.ratio > EXTRAPOLATED:
        found.append(_unobserved_advice(diagnostics, unobserved, settings))
    return found


def _outlier_advice(samples: SampleDiagnostics, settings: Settings, name: Name) -> Iterator[str]:
    mode, before = samples.mode, dict(settings.exclude or {})
    if samples.outliers:
        names = [name(mode, outlier.index) for outlier in samples.outliers]
        listed = ", ".join(
            f"{label!r} ({outlier.ratio:.0f} times the median error)" if outlier.ratio < 1e6 else f"{label!r}"
            for label, outlier in zip(names, samples.outliers, strict=True)
        )
        one = len(names) == 1
        yield (
            f"{'index' if one else 'indices'} {listed} of mode {mode} {'does' if one else 'do'} not follow the "
            f"components of the others; look at {'its' if one else 'their'} readings, and compare a fit without "
            f"{'it' if one else 'them'}: {exclude_with(before, {mode: names})}"
        )
    if samples.single:
        names = list(dict.fromkeys(name(mode, single.index) for single in samples.single))
        listed = ", ".join(f"component {single.component} in {name(mode, single.index)!r}" for single in samples.single)
        one = len(samples.single) == 1
        yield (
            f"{len(samples.single)} of the components {'is' if one else 'are'} in one index of mode {mode} alone, so "
            f"no other index confirms {'it' if one else 'them'}: {listed}; compare a fit without "
            f"{'it' if len(names) == 1 else 'them'}: {exclude_with(before, {mode: names})}"
        )


def _unobserved_advice(diagnostics: Diagnostics, unobserved: UnobservedDiagnostics, settings: Settings) -> str:
    share = diagnostics.components[unobserved.component - 1].unobserved
    if settings.sparsity is None:
        beta = settings.beta if isinstance(settings.beta, tuple) else (settings.beta,)
        cure = f"a small sparsity, such as {SMALL_SPARSITY}{', instead of beta' if any(beta) else ''}"
        cure = f"give penalty 'l1' and {cure}" if settings.penalises_squared else f"give {cure}"
    else:
        cure = f"raise sparsity{'' if settings.sparsity == 'auto' else f' above {settings.sparsity:g}'}"
    return (
        f"component {unobserved.component} is not determined by the readings: where entries are missing, the model "
        f"reaches {unobserved.ratio:.3g} times the largest reading, and {100 * share:.3g} % of the square of this "
        f"component lie there; {cure}, or fewer components"
    )
