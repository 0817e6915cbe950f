"""Trial starts: several short runs, of which the one with the lowest objective continues. Lost components are put back.

Which local minimum a run ends in depends on its start far more than on β, and components die early. So a run with the
recommended settings begins with several starts of a few dozen sweeps. Each puts lost components back whenever its
objective changes little, the lowest ones go a little further, and the lowest of those goes on to the end.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sparse_ncp.solvers.bcd.problem import Problem
from sparse_ncp.solvers.bcd.starts.initial import is_from_singular_vectors, starting_factors
from sparse_ncp.solvers.bcd.starts.regrow import dead_components, regrow
from sparse_ncp.solvers.bcd.starts.search import Candidate, Search, Stage, StartOutcome
from sparse_ncp.solvers.bcd.state import Momentum, State
from sparse_ncp.solvers.bcd.stopping import has_flattened, limit_reached
from sparse_ncp.solvers.block import Memory
from sparse_ncp.solvers.metrics import DEAD_SHARE, weights
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.protocol import TensorLike
from sparse_ncp.solvers.tensor.threads import Threads

# Starts of the recommended setting; measured in benchmarks/starts.md.
STARTS = 8
# Of that many starts one goes on as a finalist.
STARTS_PER_FINALIST = 8 / 3
# So many starts within this share of the lowest objective: more of them would end there too.
AGREEING, AGREEMENT = 4, 2e-3


class Segment(NamedTuple):
    """Sweeps until the objective changes by less than the tolerance; then components may be put back."""

    tolerance: float
    patience: int
    most_sweeps: int
    regrows: int


SEGMENTS: dict[Stage, Segment] = {
    "coarse": Segment(1e-2, 1, 60, 1),
    "fine": Segment(1e-3, 2, 60, 2),
    "finalist": Segment(1e-4, 2, 100, 1),
}
FINAL_REGROWS = 1


def search_for(problem: Problem, initial: object) -> Search | None:
    """Return the search that the settings request; None for one start without regrow.

    With factors from the caller, nothing is searched unless the settings say so explicitly.
    """
    settings, automatic = problem.settings, initial is None
    puts_back = automatic and problem.can_regrow if settings.regrow is None else settings.regrow
    starts = (STARTS if automatic else 1) if settings.starts is None else settings.starts
    if starts == 1 and not puts_back:
        return None
    return Search(puts_back, starts, every=settings.starts_mode == "all", given=not automatic)


def most_finalists(starts: int | None, every: bool) -> int:
    """Return the largest number of starts that are kept at once; `starts` is None for the recommended number."""
    starts = STARTS if starts is None else starts
    return starts if every else max(1, round(starts / STARTS_PER_FINALIST))


def start_trial(X: TensorLike, problem: Problem, state: State) -> State:
    """Before a sweep, load the factors of a new start, of the next finalist, or of the chosen start."""
    search = state.search
    if search is None or search.pending is None:
        return state
    at = replace(search, pending=None, segment_start=state.iteration + 1, regrowths=0, failed_regrowths=0)
    if search.pending == "start":
        factors: Sequence[Array] = state.factors
        if search.start > 1:
            fixed = {mode: state.factors[mode] for mode in state.fixed}
            factors = starting_factors(X, problem, None, search.start, fixed)
        return _restarted(state, at, factors, math.inf)
    if search.pending == "finalist":
        candidate = search.candidates[search.finalist]
        at = replace(at, stage="finalist", start=candidate.outcome.start)
    else:
        candidate = min(search.candidates, key=lambda candidate: candidate.outcome.objective)
        at = replace(at, stage="final", start=candidate.outcome.start, trial_iterations=state.iteration)
        at = at.compared(candidate, state.tensor_norm)
    return _restarted(state, at, candidate.factors, candidate.outcome.objective)


def is_below_threshold(X: TensorLike, problem: Problem, state: State) -> bool:
    """Return whether the current start is so small that β would remove components at once.

    NNDSVD gives every mode the root of a component's weight, so the product is far too small.
    """
    search = state.search
    if search is None or not any(problem.beta) or (search.given and search.start == 1):
        return False
    return is_from_singular_vectors(X, problem.settings, search.start)


def advance(X: TensorLike, problem: Problem, state: State, noise: float, threads: Threads) -> State:
    """After a sweep that ends its segment, put components back or go on to the next segment."""
    search, converged = state.search, state.stop_reason == "tolerance"
    if search is None or (search.stage == "final" and not converged):
        return state
    if search.stage != "final":
        state = replace(state, stop_reason=None)  # convergence ends a segment; limits are checked at the end
        if not (converged or _has_ended(state, search, noise)):
            return state
    most = FINAL_REGROWS if search.stage == "final" else SEGMENTS[search.stage].regrows
    dead = int(dead_components(X, state.factors).sum())
    if search.regrow and search.regrowths < most and dead != search.failed_regrowths:
        key, thorough = (search.start, search.rounds), search.stage == "final"
        grown = regrow(X, problem, state.factors, state.objective, key, threads, thorough)
        search = replace(search, rounds=search.rounds + 1, failed_regrowths=dead if grown is None else 0)
        if grown is not None:  # go on with its components, for which the last line of the history is corrected
            search = replace(search, segment_start=state.iteration, regrowths=search.regrowths + 1)
            history = state.history.corrected(grown.score.objective, grown.score.relative_error)
            state = replace(_restarted(state, search, grown.factors, grown.score.objective), history=history)
            return replace(state, stop_reason=limit_reached(state))
        state = replace(state, search=search)
    return state if search.stage == "final" else replace(state, search=_next(state, search))


def conclude(state: State) -> State:
    """End the trial starts now and go on with the one of lowest objective."""
    if state.search is None or not state.search.is_trial:
        return state
    factors, objective, relative_error = state.outcome()
    search = replace(
        state.search,
        stage="final",
        pending=None,
        candidates=(),
        segment_start=state.iteration,
        trial_iterations=state.iteration,
    )
    history = state.history.corrected(objective, relative_error)
    return replace(_restarted(state, search, factors, objective), history=history)


def _restarted(state: State, search: Search, factors: Sequence[Array], objective: float) -> State:
    return replace(
        state,
        search=search,
        factors=tuple(factors),
        memory=(Memory(),) * len(factors),
        momentum=Momentum(),
        objective=objective,
    )


def _has_ended(state: State, search: Search, noise: float) -> bool:
    """Return whether the objective has flattened in the current segment, or the segment has reached its limit."""
    stop, segment = state.settings.stop, SEGMENTS[search.stage]
    objective = state.history.objective[search.segment_start - 1 :]
    if search.stage == "finalist" and search.every:
        return len(objective) >= stop.max_iterations
    longest = min(segment.most_sweeps, stop.max_iterations)
    return len(objective) >= longest or has_flattened(objective, segment.tolerance, segment.patience, noise)


def _next(state: State, search: Search) -> Search:
    """Return the search after a segment at whose end nothing was put back."""
    if search.stage == "coarse":
        return replace(search, stage="fine", segment_start=state.iteration, regrowths=0)
    if search.starts == 1:
        return replace(search, stage="final", segment_start=state.iteration, regrowths=0, failed_regrowths=0)
    outcome = _outcome(state, search)
    if search.stage == "finalist":
        others = [candidate for candidate in search.candidates if candidate.outcome.start != search.start]
        place = search.finalist
        candidates = (*others[:place], Candidate(outcome, state.factors), *others[place:])
        outcomes = tuple(outcome if other.start == outcome.start else other for other in search.outcomes)
        more = place + 1 < len(candidates)
        return replace(
            search,
            candidates=candidates,
            outcomes=outcomes,
            finalist=place + more,
            pending="finalist" if more else "choice",
        )
    outcomes = (*search.outcomes, outcome)
    candidates = (*search.candidates, Candidate(outcome, state.factors))
    lowest_first = sorted(candidates, key=lambda candidate: candidate.outcome.objective)
    objectives = sorted(outcome.objective for outcome in outcomes)
    are_close = len(objectives) >= AGREEING and objectives[AGREEING - 1] <= objectives[0] * (1 + AGREEMENT)
    agree = are_close and not search.every
    last = len(outcomes) == search.starts or agree
    kept = 1 if agree else most_finalists(search.starts, search.every)
    candidates = tuple(lowest_first[:kept])
    return replace(
        search,
        passed_over=search.pass_over(lowest_first[kept:]),
        stage="coarse",
        start=search.start + (not last),
        rounds=0,
        outcomes=outcomes,
        candidates=candidates,
        pending="start" if not last else "choice" if len(candidates) == 1 and not search.every else "finalist",
    )


def _outcome(state: State, search: Search) -> StartOutcome:
    alive = weights(state.factors) > DEAD_SHARE * state.tensor_norm
    return StartOutcome(
        start=search.start,
        objective=state.objective,
        relative_error=state.history.relative_error[-1],
        components=int(alive.sum()),
        iterations=sum(start == search.start for start in state.history.start),
    )
