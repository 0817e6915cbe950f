"""Runs of a comparison: their numbers, their descent, and how well their components match."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

import numpy as np

from sparse_ncp.solvers.bcd.result import Result
from sparse_ncp.solvers.bcd.state import History
from sparse_ncp.solvers.metrics import (
    DEAD_SHARE,
    NonzeroComponents,
    Sparsity,
    best_matching,
    unit_columns,
    weights,
)
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


class RunNumbers(Protocol):
    """The numbers of a result, in Python or in the record of a job."""

    @property
    def objective(self) -> float: ...
    @property
    def relative_error(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def iterations(self) -> int: ...
    @property
    def stop_reason(self) -> str: ...
    @property
    def sparsity(self) -> Sparsity: ...
    @property
    def nonzero_components(self) -> NonzeroComponents: ...
    @property
    def weights(self) -> Sequence[float] | Float64: ...
    @property
    def warnings(self) -> Sequence[str]: ...


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
    mode_components: tuple[int, ...] = ()
    components: int = 0  # with a weight, whatever their scale in each mode
    warnings: tuple[str, ...] = ()
    core_consistency: float | None = None  # None where there is none, or without diagnostics
    error: str | None = None
    descent: Descent = Descent()
    factors: tuple[Array, ...] = ()
    job_id: str | None = None  # of a run on a server

    @classmethod
    def of(cls, cell: Cell, repeat: int, result: Result) -> "Run":
        """Return a run that has succeeded."""
        core = result.diagnostics.core_consistency if result.diagnostics else None
        descent, factors = Descent.of(result.history), tuple(result.factors)
        return cls.of_numbers(cell, repeat, result, core_consistency=core, descent=descent, factors=factors)

    @classmethod
    def of_numbers(cls, cell: Cell, repeat: int, result: RunNumbers, **others: Any) -> "Run":
        """Return a run that has succeeded; `others` are the fields that its numbers do not give."""
        return cls(
            cell,
            repeat,
            objective=result.objective,
            relative_error=result.relative_error,
            seconds=result.seconds,
            iterations=result.iterations,
            stop_reason=result.stop_reason,
            sparsity=result.sparsity.per_mode,
            mode_components=result.nonzero_components.per_mode,
            components=components_by_weight(result.weights),
            warnings=tuple(result.warnings),
            **others,
        )


def components_by_weight(sizes: Sequence[float] | Float64) -> int:
    """Count the components with these weights that are not negligible beside the largest."""
    w = np.asarray(sizes)
    return int((w > DEAD_SHARE * w.max(initial=0.0)).sum())


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
