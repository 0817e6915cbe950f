"""What a run came to, in the words of the contract."""

from solvers import Result, State
from worker.contract import ComponentCounts, JobResult, Progress, SparsityShares


def progress_of(state: State) -> list[Progress]:
    """One for every iteration so far."""
    return [progress_at(state, iteration) for iteration in range(1, state.iteration + 1)]


def progress_at(state: State, iteration: int) -> Progress:
    history, place = state.history, iteration - 1
    error = history.relative_error[place]
    return Progress(
        iteration=iteration,
        objective=history.objective[place],
        relative_error=error,
        fit=1 - error,
        seconds=history.seconds[place],
        phase="compressed" if state.phase == "compressed" or iteration < state.compressed_until else "exact",
    )


def result_of(state: State) -> JobResult:
    """The result of an ended run."""
    result = Result.of(state)
    return JobResult(
        objective=result.objective,
        relative_error=result.relative_error,
        fit=result.fit,
        iterations=result.iterations,
        seconds=result.seconds,
        stop_reason=result.stop_reason,
        sparsity=SparsityShares(per_mode=result.sparsity.per_mode, relative_per_mode=result.sparsity.relative_per_mode),
        nonzero_components=ComponentCounts(
            per_mode=result.nonzero_components.per_mode, all_modes=result.nonzero_components.all_modes
        ),
        weights=tuple(float(weight) for weight in result.weights),
        warnings=result.warnings,
    )
