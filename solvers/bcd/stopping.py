"""When a run ends: the same rules for every method."""

from collections.abc import Sequence
from itertools import pairwise

from solvers.bcd.state import State, StopReason
from solvers.settings import Stop

# Iterations over which an objective that should fall goes up and down without getting lower: only rounding is left.
CYCLE = 20


def stop_reason(state: State, noise: float = 0.0, monotone: bool = False) -> StopReason | None:
    """Why the run ends here, or None. Only changes from one exact value to the next count, once there are any.

    A change of the objective up to `noise`, that of rounding, counts as none. `monotone` methods have converged, too,
    where rounding alone moves the objective; so has any in single precision, which ends that phase and not the run.
    `max_seconds` holds after `state.enforce_after_iteration`.
    """
    stop, begun = state.settings.stop, state.search.begun if state.search else 0
    history = state.history.since(max(state.compressed_until, state.single_until, begun))
    values = history.relative_error if stop.criterion == "relative_error" else history.objective
    may_cycle = state.phase == "single" or (monotone and stop.tolerance > 0)
    if _has_converged(stop, values, noise) or (may_cycle and _only_rounding_is_left(stop, history.objective, noise)):
        return "tolerance"
    return limit_reached(state)


def limit_reached(state: State) -> StopReason | None:
    """Which limit ends the run here, converged or not; None if it may go on."""
    stop, history = state.settings.stop, state.history
    if len(history) - state.trial_iterations >= stop.max_iterations:
        return "max_iterations"
    limit = stop.max_seconds if len(history) > state.enforce_after_iteration else None
    return "max_seconds" if limit is not None and history.seconds[-1] >= limit else None


def has_flattened(objective: Sequence[float], tolerance: float, patience: int, noise: float) -> bool:
    """Whether each of the last `patience` relative changes was below the tolerance, or below the noise of rounding."""
    latest = objective[-patience - 1 :]
    return len(latest) > patience and all(
        abs(before - after) < max(tolerance * abs(before), noise) for before, after in pairwise(latest)
    )


def _has_converged(stop: Stop, values: Sequence[float], noise: float) -> bool:
    """Whether each of the last `patience` iterations changed less than the tolerance."""
    if stop.criterion == "relative_objective" and stop.tolerance > 0:
        # At an exact fit the objective is all rounding, and its relative change means nothing.
        return has_flattened(values, stop.tolerance, stop.patience, noise)
    latest = values[-stop.patience - 1 :]
    return len(latest) > stop.patience and all(
        abs(before - after) < stop.tolerance for before, after in pairwise(latest)
    )


def _only_rounding_is_left(stop: Stop, objective: Sequence[float], noise: float) -> bool:
    """Whether an objective that never rises but by rounding has risen, and is no lower than a while before.

    In single precision such a cycle can be wider than the tolerance, and would last for ever.
    """
    window = max(CYCLE, 2 * stop.patience)
    if len(objective) <= window:
        return False
    recent, before = objective[-window:], min(objective[:-window])
    rose = any(after > earlier for earlier, after in pairwise(recent))
    share = stop.patience * stop.tolerance if stop.criterion == "relative_objective" else 0.0
    return rose and before - min(recent) <= max(share * abs(before), noise)
