"""The result of a run, and the warnings that belong to it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sparse_ncp.solvers.bcd.penalties import beta_for
from sparse_ncp.solvers.bcd.problem import Problem, resolve
from sparse_ncp.solvers.bcd.starts.search import StartOutcome
from sparse_ncp.solvers.bcd.state import NO_ROWS, History, State, StopReason
from sparse_ncp.solvers.bcd.warnings import Name, diagnostic_advice, index_itself
from sparse_ncp.solvers.diagnostics.diagnose import Diagnostics
from sparse_ncp.solvers.diagnostics.stability import Stability
from sparse_ncp.solvers.methods import Penalty
from sparse_ncp.solvers.metrics import (
    DEAD_SHARE,
    NonzeroComponents,
    Sparsity,
    nonzero_components,
    nonzero_components_by_weight,
    sparsity,
    weights,
)
from sparse_ncp.solvers.settings import Init, Settings
from sparse_ncp.solvers.tensor.products import Array, Float64

# With a relative error this close to 1, the model is zero.
NOTHING = 1e-9
# A penalty with a smaller share of the objective hardly changes the result.
FAINT = 1e-3
# A start whose objective is within this share of the chosen one's fits as well; with a congruence below this, it has a
# component that the other lacks.
RIVAL, SAME_COMPONENT = 5e-3, 0.7
# Begins the note of a run without regrow whose components all vanished although one would lower the objective.
ZERO_IS_NOT_BEST = "zero is not the best answer"


@dataclass(frozen=True)
class Resolved:
    """Settings whose values depend on the method or on the tensor."""

    penalty: Penalty
    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    init: Init

    @classmethod
    def of(cls, state: State) -> "Resolved":
        settings = state.settings
        penalty: Penalty = "l1_squared" if settings.penalises_squared else "l1"
        return cls(penalty, state.weights.alpha, state.weights.beta, settings.init)


@dataclass(frozen=True)
class Result:
    """The factors of ⟦A¹…Aᴺ⟧ and how the run went.

    Attributes
    ----------
    settings, resolved
        The settings, and the values of those that depend on the method or on the tensor.
    factors : list of numpy.ndarray
        One I_n × R factor per mode. Rows of excluded indices were computed after the fit.
    objective, relative_error, fit : float
        The penalised objective; ‖X − ⟦A¹…Aᴺ⟧‖ / ‖X‖; and 1 minus that; without excluded indices.
    history : History
        Objective, relative error and time of every iteration, of the fit without excluded indices.
    stop_reason : str
        Why the run ended, for example "tolerance" or "max_iterations".
    compressed_iterations, single_iterations : int
        Iterations of an accelerated run on a compressed tensor and in single precision; the last of them is exact.
    starts : tuple of StartOutcome
        The results of the trial starts.
    missing : int
        Number of missing entries, which were not fitted; those at excluded indices are not counted.
    excluded : dict of int to tuple of int
        The indices that were left out of the fit, by mode, counted from 1.
    weights : numpy.ndarray
        The norm of each component.
    sparsity, nonzero_components
        Shares of entries and numbers of components around `sparsity_threshold`.
    warnings : tuple of str
        Advice for readers of the factors.
    diagnostics : Diagnostics or None
        None for a run that was cancelled, or with `diagnose=False`.
    stability : Stability or None
        With `stability=True`: how sure the components are.

    Examples
    --------
    >>> from sparse_ncp import Settings, solve, synthetic
    >>> X = synthetic.planted((20, 15, 10), rank=3, seed=1).tensor
    >>> result = solve(X, Settings(rank=3, method="hals", stop={"max_iterations": 5}))
    >>> result.stop_reason, result.iterations
    ('max_iterations', 5)
    """

    settings: Settings
    resolved: Resolved
    factors: list[Array]
    objective: float
    relative_error: float
    history: History
    stop_reason: StopReason
    compressed_iterations: int
    single_iterations: int
    starts: tuple[StartOutcome, ...]
    missing: int
    excluded: Mapping[int, tuple[int, ...]]
    weights: Float64
    sparsity: Sparsity
    nonzero_components: NonzeroComponents
    warnings: tuple[str, ...]
    diagnostics: Diagnostics | None
    stability: Stability | None = None

    @classmethod
    def of(
        cls,
        state: State,
        diagnostics: Diagnostics | None = None,
        stability: Stability | None = None,
        rows: Mapping[int, Array] = NO_ROWS,
        name: Name = index_itself,
    ) -> "Result":
        """Return the result of a run that ends with this state.

        `rows` are those of excluded indices, which are zero otherwise. `name` gives the label of an index, for
        the warnings.
        """
        if state.stop_reason is None:
            raise ValueError("the run has not ended: take its last state, or state.cancelled()")
        factors, objective, relative_error = state.outcome()
        threshold = state.settings.sparsity_threshold
        counts, exclude = nonzero_components(factors, threshold), state.settings.exclude or {}
        if state.settings.sparsity is not None:
            counts = nonzero_components_by_weight(factors, DEAD_SHARE * state.tensor_norm)
        return cls(
            settings=state.settings,
            resolved=Resolved.of(state),
            factors=state.whole_factors(rows),
            objective=objective,
            relative_error=relative_error,
            history=state.history,
            stop_reason=state.stop_reason,
            compressed_iterations=state.iterations_in("compressed"),
            single_iterations=state.iterations_in("single"),
            starts=state.search.outcomes if state.search else (),
            missing=state.missing,
            excluded={mode: tuple(sorted(int(index) for index in some)) for mode, some in exclude.items()},
            weights=weights(factors),
            sparsity=sparsity(factors, threshold),
            nonzero_components=counts,
            warnings=(
                *_warnings(state, factors, objective, relative_error, counts),
                *(diagnostic_advice(diagnostics, state.settings, name) if diagnostics else ()),
            ),
            diagnostics=diagnostics,
            stability=stability,
        )

    @property
    def fit(self) -> float:
        return 1 - self.relative_error

    @property
    def iterations(self) -> int:
        return len(self.history)

    @property
    def seconds(self) -> float:
        return self.history.seconds[-1]


def _warnings(
    state: State, factors: tuple[Array, ...], objective: float, relative_error: float, counts: NonzeroComponents
) -> list[str]:
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
            f"{kept}, as it should be: putting components back did not lower the objective, so at this penalty the "
            f"tensor holds no more; lower it if you expect weaker ones"
        )
    if problem.can_regrow:
        remedy = "set regrow, which the recommended preset does"
    else:
        remedy = "compare other starts with starts=8" + (
            "" if state.settings.init == "nndsvd" else ", or init='nndsvd'"
        )
    return f"{kept}, and whether more would lower the objective was not tried: {remedy}"
