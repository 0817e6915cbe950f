"""When a run ends: the same rules for every method."""

from solvers.settings import Stop
from solvers.state import History, StopReason


def is_calm(stop: Stop, history: History) -> bool:
    """Whether the last iteration changed less than the tolerance."""
    if len(history) < 2:
        return False
    values = history.relative_error if stop.criterion == "relative_error" else history.objective
    change = abs(values[-2] - values[-1])
    if stop.criterion == "relative_objective":
        return change < stop.tolerance * abs(values[-2])
    return change < stop.tolerance


def stop_reason(stop: Stop, history: History, calm: int) -> StopReason | None:
    """Why the run ends here, or None. `calm` counts the consecutive calm iterations."""
    if calm >= stop.patience:
        return "tolerance"
    if len(history) >= stop.max_iterations:
        return "max_iterations"
    if stop.max_seconds is not None and history.seconds[-1] >= stop.max_seconds:
        return "max_seconds"
    return None
