"""Stopping rules, the same for every method."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from sparse_ncp.solvers.bcd.state import State, StopReason
from sparse_ncp.solvers.settings import Stop

Change: TypeAlias = tuple[float, float]  # a value before a sweep and after it

# Over this many iterations an objective that goes up and down without falling changes by rounding alone.
CYCLE = 20


def stop_reason(state: State, noise: float = 0.0, monotone: bool = False) -> StopReason | None:
    """Return why the run ends here, or None. Changes count in every phase, but an exact sweep comes last.

    A change of the objective up to `noise`, that of rounding, counts as none. A `monotone` method has also converged
    if only rounding moves the objective. So has any method in single precision; that ends the phase, not the run.
    `max_seconds` holds after `state.enforce_after_iteration`.
    """
    stop, segment_start = state.settings.stop, state.search.segment_start if state.search else 0
    segment_start, switched = max(1, segment_start), max(1, state.compressed_until, state.single_until)
    exact = state.history.objective[max(segment_start, switched) - 1 :]
    may_cycle = state.phase == "single" or (monotone and stop.tolerance > 0)
    converged = _has_converged(state, segment_start, switched, noise)
    if converged or (may_cycle and _only_rounding_is_left(stop, exact, noise)):
        return "tolerance"
    return limit_reached(state)


def limit_reached(state: State) -> StopReason | None:
    """Return the limit that ends the run here, converged or not; None if it may go on."""
    stop, history = state.settings.stop, state.history
    if len(history) - state.trial_iterations >= stop.max_iterations:
        return "max_iterations"
    limit = stop.max_seconds if len(history) > state.enforce_after_iteration else None
    return "max_seconds" if limit is not None and history.seconds[-1] >= limit else None


def has_flattened(objective: Sequence[float], tolerance: float, patience: int, noise: float) -> bool:
    """Return whether each of the last `patience` relative changes was below the tolerance or the noise of rounding."""
    return _are_small(_latest(objective, patience), tolerance, patience, noise)


def _has_converged(state: State, segment_start: int, switched: int, noise: float) -> bool:
    """Return whether the last `patience` sweeps of a segment, one exact at least, changed less than the tolerance.

    At the end of a phase its factors are measured again, on the tensor itself. That change does not count.
    """
    stop, history = state.settings.stop, state.history
    values = history.relative_error if stop.criterion == "relative_error" else history.objective
    exact = _latest(values[max(segment_start, switched) - 1 :], stop.patience)
    if not exact:
        return False
    changes = [*_latest(values[segment_start - 1 : switched - 1], stop.patience), *exact][-stop.patience :]
    if stop.criterion == "relative_objective" and stop.tolerance > 0:
        # At an exact fit the objective is all rounding, and its relative change means nothing.
        return _are_small(changes, stop.tolerance, stop.patience, noise)
    return len(changes) == stop.patience and all(abs(before - after) < stop.tolerance for before, after in changes)


def _are_small(changes: Sequence[Change], tolerance: float, patience: int, noise: float) -> bool:
    return len(changes) == patience and all(
        abs(before - after) < max(tolerance * abs(before), noise) for before, after in changes
    )


def _latest(values: Sequence[float], count: int) -> list[Change]:
    return list(pairwise(values[-count - 1 :]))


def _only_rounding_is_left(stop: Stop, objective: Sequence[float], noise: float) -> bool:
    """Return whether an objective that only rounding can raise has risen, and is no lower than some sweeps before.

    In single precision such a cycle can be wider than the tolerance and would never end.
    """
    window = max(CYCLE, 2 * stop.patience)
    if len(objective) <= window:
        return False
    recent, before = objective[-window:], min(objective[:-window])
    rose = any(after > earlier for earlier, after in pairwise(recent))
    share = stop.patience * stop.tolerance if stop.criterion == "relative_objective" else 0.0
    return rose and before - min(recent) <= max(share * abs(before), noise)
