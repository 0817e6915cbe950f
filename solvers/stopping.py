"""When a run ends: the same rules for every method."""

from itertools import pairwise

from solvers.settings import Stop
from solvers.state import History, StopReason


def stop_reason(
    stop: Stop, history: History, noise: float = 0.0, compressed_until: int = 0, untimed_until: int = 0
) -> StopReason | None:
    """Why the run ends here, or None. Only changes from one exact value to the next count, once there are any.

    A change of the objective up to `noise` is rounding. The time limit holds after `untimed_until`.
    """
    if _is_calm(stop, history.since(compressed_until), noise):
        return "tolerance"
    return limit_reached(stop, history, untimed_until)


def limit_reached(stop: Stop, history: History, untimed_until: int = 0) -> StopReason | None:
    """Whether the run may not go on, calm or not."""
    if len(history) >= stop.max_iterations:
        return "max_iterations"
    limit = stop.max_seconds if len(history) > untimed_until else None
    return "max_seconds" if limit is not None and history.seconds[-1] >= limit else None


def _is_calm(stop: Stop, history: History, noise: float) -> bool:
    """Whether each of the last `patience` iterations changed less than the tolerance."""
    values = history.relative_error if stop.criterion == "relative_error" else history.objective
    latest = values[-stop.patience - 1 :]
    if len(latest) <= stop.patience:
        return False
    changes = [abs(before - after) for before, after in pairwise(latest)]
    if stop.criterion == "relative_objective" and stop.tolerance > 0:
        # At an exact fit the objective is all rounding, and has no relative change worth the name.
        limits = [max(stop.tolerance * abs(before), noise) for before in latest[:-1]]
    else:
        limits = [stop.tolerance] * len(changes)
    return all(change < limit for change, limit in zip(changes, limits, strict=True))
