"""The progress of a run through its trial starts: a value that is saved with the state."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from sparse_ncp.solvers.metrics import DEAD_SHARE, lowest_congruence
from sparse_ncp.solvers.tensor.products import Array

Stage: TypeAlias = Literal["coarse", "fine", "finalist", "final"]
# The factors that the next iteration takes: those of a new start, of the next finalist, or of the chosen start.
Pending: TypeAlias = Literal["start", "finalist", "choice"]


@dataclass(frozen=True)
class StartOutcome:
    """The result of one trial start.

    `congruence` compares its components with those of the start that goes on, when that is chosen: the lowest product
    of cosines over the modes, where components are matched best. 1 where all are the same; None if the trials did not
    end.
    """

    start: int
    objective: float
    relative_error: float
    components: int
    iterations: int
    congruence: float | None = None


@dataclass(frozen=True)
class Candidate:
    """A start that may be continued, with its factors."""

    outcome: StartOutcome
    factors: tuple[Array, ...]


@dataclass(frozen=True)
class Search:
    """A run that tries several starts, or puts components back, or both.

    Every start goes through a coarse and a fine stage; the finalists through one more; the start that is chosen, to
    the end. Stages consist of segments of sweeps; after each, lost components may be put back.
    """

    regrow: bool
    starts: int
    every: bool  # run all starts to the end, not only the finalists
    given: bool = False  # the first start is the caller's
    stage: Stage = "coarse"
    start: int = 1  # the current one, from 1
    segment_start: int = 0  # iterations before the current segment
    regrowths: int = 0  # times that components were put back in this stage
    rounds: int = 0  # attempts to put components back in this start; part of the random seed
    failed_regrowths: int = 0  # dead components of which none could be put back; not tried again with as many
    pending: Pending | None = "start"
    outcomes: tuple[StartOutcome, ...] = ()
    candidates: tuple[Candidate, ...] = field(default=(), compare=False)
    passed_over: tuple[Candidate, ...] = field(default=(), compare=False)  # in float32, to be compared with the choice
    finalist: int = 0  # of the candidates, from 0
    trial_iterations: int = 0  # of all starts, before one was chosen

    @property
    def is_trial(self) -> bool:
        """Whether this is one of several starts, and not yet the one that was chosen."""
        return self.starts > 1 and self.stage != "final"

    def pass_over(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Add starts that were not chosen; their factors are stored in single precision."""
        with np.errstate(over="ignore"):  # what became infinite is unlike any other
            single = [tuple(A.astype(np.float32, copy=False) for A in one.factors) for one in candidates]
        return (*self.passed_over, *(Candidate(one.outcome, A) for one, A in zip(candidates, single, strict=True)))

    def compared(self, chosen: Candidate, tensor_norm: float) -> "Search":
        """Return the search after the choice: all starts are compared with the one that continues, and dropped."""
        found = {
            one.outcome.start: lowest_congruence(chosen.factors, one.factors, DEAD_SHARE * tensor_norm)
            for one in (*self.candidates, *self.passed_over)
        }
        outcomes = tuple(replace(outcome, congruence=found.get(outcome.start)) for outcome in self.outcomes)
        return replace(self, outcomes=outcomes, candidates=(), passed_over=())

    def header(self) -> dict[str, Any]:
        """Everything but the factors of candidates and of the starts that were not chosen, as JSON."""
        starts = ("outcomes", "candidates", "passed_over")
        return {
            **{name: value for name, value in vars(self).items() if name not in starts},
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "candidates": [asdict(candidate.outcome) for candidate in self.candidates],
            "passed_over": [asdict(candidate.outcome) for candidate in self.passed_over],
        }

    @classmethod
    def from_header(
        cls,
        header: Mapping[str, Any],
        candidates: Sequence[tuple[Array, ...]],
        passed_over: Sequence[tuple[Array, ...]] = (),
    ) -> "Search":
        def with_factors(outcomes: Sequence[Any], factors: Sequence[tuple[Array, ...]]) -> tuple[Candidate, ...]:
            return tuple(Candidate(StartOutcome(**one), A) for one, A in zip(outcomes, factors, strict=True))

        return cls(
            **{
                **header,
                "outcomes": tuple(StartOutcome(**outcome) for outcome in header["outcomes"]),
                "candidates": with_factors(header["candidates"], candidates),
                "passed_over": with_factors(header.get("passed_over", ()), passed_over),
            }
        )
