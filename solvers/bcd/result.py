"""The result of a run."""

from collections.abc import Mapping
from dataclasses import dataclass

from sparse_ncp.solvers.bcd.starts.search import StartOutcome
from sparse_ncp.solvers.bcd.state import NO_ROWS, History, State, StopReason
from sparse_ncp.solvers.bcd.warnings import Name, diagnostic_warnings, index_itself, run_warnings
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
        Stability of the components, with `stability=True`.

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
                *run_warnings(state, factors, objective, relative_error, counts),
                *(diagnostic_warnings(diagnostics, state.settings, name) if diagnostics else ()),
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
