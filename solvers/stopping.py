"""When a run ends: the same rules for every method."""

from itertools import pairwise

from solvers.settings import Stop
from solvers.state import History, StopReason


def stop_reason(stop: Stop, history: History) -> StopReason | None:
    """Why the run ends here, or None."""
    if _is_calm(stop, history):
        return "tolerance"
    if len(history) >= stop.max_iterations:
        return "max_iterations"
    if stop.max_seconds is not None and history.seconds[-1] >= stop.max_seconds:
        return "max_seconds"
    return None


def _is_calm(stop: Stop, history: History) -> bool:
    """Whether each of the last `patience` iterations changed less than the tolerance."""
    values = history.relative_error if stop.criterion == "relative_error" else history.objective
    latest = values[-stop.patience - 1 :]
    if len(latest) <= stop.patience:
        return False
    relative = stop.criterion == "relative_objective"
    return all(
        abs(before - after) < stop.tolerance * (abs(before) if relative else 1.0) for before, after in pairwise(latest)
    )
