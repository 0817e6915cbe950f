"""Runs of a comparison: their numbers, their descent, and how well their components match."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from sparse_ncp.solvers.bcd.result import Result
from sparse_ncp.solvers.bcd.state import History
from sparse_ncp.solvers.metrics import DEAD_SHARE, best_matching, unit_columns, weights
from sparse_ncp.solvers.studies.settings import Cell
from sparse_ncp.solvers.tensor.products import Array, Float64, hadamard

# Repeats of a cell that are compared with each other: 990 pairs.
MOST_COMPARED = 45


@dataclass(frozen=True)
class Descent:
    """The objective and the computing time after every sweep, without those of trial starts."""

    seconds: tuple[float, ...] = ()
    objective: tuple[float, ...] = ()

    @classmethod
    def of(cls, history: History) -> "Descent":
        kept = [place for place, start in enumerate(history.start) if start is None]
        return cls(tuple(history.seconds[i] for i in kept), tuple(history.objective[i] for i in kept))


@dataclass(frozen=True)
class Run:
    """One run: its results, or the error that ended it."""

    cell: Cell
    repeat: int
    objective: float = math.nan
    relative_error: float = math.nan
    seconds: float = math.nan
    iterations: int = 0
    stop_reason: str = ""
    sparsity: tuple[float, ...] = ()  # per mode, as are the components
    components: tuple[int, ...] = ()
    core_consistency: float | None = None  # None where there is none, or without diagnostics
    error: str | None = None
    descent: Descent = Descent()
    factors: tuple[Array, ...] = ()
    job_id: str | None = None  # of a run on a server

    @classmethod
    def of(cls, cell: Cell, repeat: int, result: Result) -> "Run":
        return cls(
            cell,
            repeat,
            result.objective,
            result.relative_error,
            result.seconds,
            result.iterations,
            result.stop_reason,
            result.sparsity.per_mode,
            result.nonzero_components.per_mode,
            result.diagnostics.core_consistency if result.diagnostics else None,
            descent=Descent.of(result.history),
            factors=tuple(result.factors),
        )


def matches(runs: Sequence[Run]) -> list[float]:
    """Return the factor match score of every pair of runs, among the first 45."""
    models = [comparable(run.factors) for run in runs[:MOST_COMPARED]]
    return [match(one, other) for one, other in combinations(models, 2)]


def comparable(factors: Sequence[Array]) -> list[Float64]:
    """Return the nonzero components with columns of unit length, ready to be matched with many other models."""
    w = weights(factors)
    return [unit_columns(A[:, w > DEAD_SHARE * w.max()]) for A in factors]


def match(one: Sequence[Float64], other: Sequence[Float64]) -> float:
    """Return the factor match score of two comparable models, divided by the larger number of components."""
    left: tuple[int, int] = one[0].shape[1], other[0].shape[1]
    if 0 in left:
        return float(left == (0, 0))  # two models without components agree
    cosines = hadamard([A.T @ B for A, B in zip(one, other, strict=True)])
    return float(cosines[best_matching(cosines)].sum()) / max(left)
