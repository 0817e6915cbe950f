"""What a run gives back."""

from dataclasses import dataclass

from solvers.arrays import Array, Float64
from solvers.metrics import NonzeroComponents, Sparsity, nonzero_components, sparsity, weights
from solvers.problem import resolve
from solvers.settings import Settings
from solvers.state import History, State, StopReason

# A fit below this is none: the components are zero, or (MU, which never reaches zero) as good as that.
NOTHING = 1e-9


@dataclass(frozen=True)
class Result:
    """The factors of ⟦A¹…Aᴺ⟧ and how they came about. `warnings` says what a reader of the factors should know."""

    settings: Settings
    factors: list[Array]
    history: History
    stop_reason: StopReason
    compressed_iterations: int  # that an accelerated run made on its compressed tensor; the last of them is exact
    weights: Float64
    sparsity: Sparsity
    nonzero_components: NonzeroComponents
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, state: State) -> "Result":
        """The result of a run at a state after which nothing more is computed."""
        if state.stop_reason is None:
            raise ValueError("the run goes on: take its last state, or state.cancelled()")
        factors = list(state.factors)
        threshold = state.settings.sparsity_threshold
        alive = nonzero_components(factors, threshold)
        problem = resolve(state.settings, len(factors))
        advice = problem.advice()
        if state.history.relative_error[-1] > 1 - NOTHING:
            advice.append(
                "every component is zero: the penalty outweighs the tensor; lower beta, or scale the tensor up"
            )
        elif alive.all_modes == 0:
            advice.append("every component lies below sparsity_threshold; lower it, or scale the tensor up")
        elif alive.all_modes < state.settings.rank and not any(problem.beta):
            advice.append(
                f"only {alive.all_modes} of {state.settings.rank} components are left although beta is zero: they were "
                "lost to the start, not to the data; try init='nndsvd', or other seeds, and compare the objective"
            )
        return cls(
            settings=state.settings,
            factors=factors,
            history=state.history,
            stop_reason=state.stop_reason,
            compressed_iterations=state.compressed_until if state.phase == "exact" else state.iteration,
            weights=weights(factors),
            sparsity=sparsity(factors, threshold),
            nonzero_components=alive,
            warnings=tuple(advice),
        )

    @property
    def objective(self) -> float:
        return self.history.objective[-1]

    @property
    def relative_error(self) -> float:
        return self.history.relative_error[-1]

    @property
    def fit(self) -> float:
        return 1 - self.relative_error

    @property
    def iterations(self) -> int:
        return len(self.history)

    @property
    def seconds(self) -> float:
        return self.history.seconds[-1]
