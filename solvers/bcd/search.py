"""The progress of a run through its trial starts: a value that is saved with the state."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from sparse_ncp.solvers.tensor.products import Array

Stage: TypeAlias = Literal["coarse", "fine", "finalist", "final"]
# The factors that the next iteration takes: those of a new start, of the next finalist, or of the chosen start.
Pending: TypeAlias = Literal["start", "finalist", "choice"]


@dataclass(frozen=True)
class StartOutcome:
    """The result of one trial start."""

    start: int
    objective: float
    relative_error: float
    components: int
    iterations: int


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
    finalist: int = 0  # of the candidates, from 0
    trial_iterations: int = 0  # of all starts, before one was chosen

    @property
    def is_trial(self) -> bool:
        """Whether this is one of several starts, and not yet the one that was chosen."""
        return self.starts > 1 and self.stage != "final"

    def header(self) -> dict[str, Any]:
        """Everything but the candidates' factors, as JSON."""
        return {
            **{name: value for name, value in vars(self).items() if name not in ("outcomes", "candidates")},
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "candidates": [asdict(candidate.outcome) for candidate in self.candidates],
        }

    @classmethod
    def from_header(cls, header: Mapping[str, Any], factors: list[tuple[Array, ...]]) -> "Search":
        candidates = zip(header["candidates"], factors, strict=True)
        return cls(
            **{
                **header,
                "outcomes": tuple(StartOutcome(**outcome) for outcome in header["outcomes"]),
                "candidates": tuple(Candidate(StartOutcome(**outcome), A) for outcome, A in candidates),
            }
        )
