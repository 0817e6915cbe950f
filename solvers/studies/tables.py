"""The table of a comparison: one row per cell, and notes on what the rows have in common and what not."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeAlias

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.methods import Penalty
from sparse_ncp.solvers.metrics import psnr
from sparse_ncp.solvers.studies.runs import Run, matches
from sparse_ncp.solvers.studies.settings import Cell


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over the repeats; the deviation of a single value is zero."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return the mean and deviation of the values; None if there are none."""
        if not values:
            return None
        if not all(map(math.isfinite, values)):  # the PSNR of a factor without components
            return cls(math.fsum(values) / len(values), math.nan)
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


class FiniteSpread(BaseModel):
    """Mean and standard deviation over the repeats; null where a value is not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: float | None
    deviation: float | None


def _finite(spread: Spread | None) -> FiniteSpread | None:
    if spread is None:
        return None
    mean, deviation = (value if math.isfinite(value) else None for value in (spread.mean, spread.deviation))
    return FiniteSpread(mean=mean, deviation=deviation)


Measured: TypeAlias = Annotated[Spread | None, PlainSerializer(_finite, return_type=FiniteSpread | None)]


class Row(BaseModel):
    """One cell of the grid, summarised over its repeats."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    method: str
    beta: float | None
    requested_sparsity: float | None = Field(description="the sparsity in the request; null if it gave betas")
    penalty: Penalty | None = Field(
        None, description="what beta or sparsity multiplies: l1 or l1_squared; null where the weight is 0"
    )
    runs: int = Field(description="runs that succeeded or failed")
    failures: int = Field(description="runs that failed")
    best: int | str | None = Field(description="repeat or job with the lowest objective")
    objective: Measured
    relative_error: Measured
    seconds: Measured
    iterations: Measured
    sparsity: Measured = Field(description="fraction of zeros in the factor of the table's mode")
    components: Measured = Field(description="components with a weight above a millionth of the largest, in all modes")
    mode_components: Measured = Field(
        None, description="components that reach the sparsity threshold in the factor of the table's mode"
    )
    factor_match: Measured = Field(description="between pairs of the first 45 repeats; null for a single run")
    psnr: Measured = Field(description="of the reference factor, in dB; null without a reference")
    warned: int = Field(0, description="runs with a warning")
    warnings: tuple[str, ...] = Field((), description="the different warnings, at most ten, of the best run first")

    @property
    def cell(self) -> Cell:
        """The combination of settings that the row summarises."""
        return Cell(
            rank=self.rank,
            method=self.method,
            beta=self.beta,
            sparsity=self.requested_sparsity,
            penalty=self.penalty,
        )

    @property
    def weight(self) -> float:
        """The requested weight of the penalty: beta or sparsity."""
        return (self.beta if self.requested_sparsity is None else self.requested_sparsity) or 0.0

    @classmethod
    def of(
        cls, cell: Cell, runs: Sequence[Run], mode: int, factor_match: Sequence[float], psnr: Sequence[float] = ()
    ) -> Self:
        """Summarise the runs of a cell that have ended.

        Parameters
        ----------
        cell
            The combination of settings that the runs share.
        runs
            The runs that succeeded or failed.
        mode
            The mode, counted from 1, whose sparsity and components are reported.
        factor_match
            The factor match score of every pair of runs.
        psnr
            The PSNR of every run that succeeded, if there is a reference factor.
        """
        succeeded = [run for run in runs if run.error is None]
        best = min(succeeded, key=lambda run: run.objective, default=None)
        best_first = [run.warnings for run in sorted(succeeded, key=lambda run: run is not best)]
        return cls(
            rank=cell.rank,
            method=cell.method,
            beta=cell.beta,
            requested_sparsity=cell.sparsity,
            penalty=cell.penalty,
            runs=len(runs),
            failures=len(runs) - len(succeeded),
            best=None if best is None else best.repeat if best.job_id is None else best.job_id,
            objective=Spread.of([run.objective for run in succeeded]),
            relative_error=Spread.of([run.relative_error for run in succeeded]),
            seconds=Spread.of([run.seconds for run in succeeded]),
            iterations=Spread.of([run.iterations for run in succeeded]),
            sparsity=Spread.of([run.sparsity[mode - 1] for run in succeeded]),
            components=Spread.of([run.components for run in succeeded]),
            mode_components=Spread.of([run.mode_components[mode - 1] for run in succeeded]),
            factor_match=Spread.of(factor_match),
            psnr=Spread.of(psnr),
            warned=sum(bool(run.warnings) for run in succeeded),
            warnings=tuple(dict.fromkeys(text for some in best_first for text in some))[:MOST_WARNINGS],
        )


Measure = Literal[
    "objective",
    "relative_error",
    "seconds",
    "iterations",
    "sparsity",
    "components",
    "mode_components",
    "factor_match",
    "psnr",
]


@dataclass(frozen=True)
class Column:
    measure: Measure
    title: str
    best: Literal["least", "most"] | None = None  # which value is better, where one is


COLUMNS = (
    Column("objective", "Objective", "least"),
    Column("relative_error", "Relative error", "least"),
    Column("seconds", "Time [s]", "least"),
    Column("iterations", "Iterations"),
    Column("sparsity", "Sparsity"),
    Column("components", "Components"),
    Column("mode_components", "Components of the mode"),
    Column("factor_match", "Factor match", "most"),
    Column("psnr", "PSNR [dB]", "most"),
)
# Different warnings of a cell that a row repeats.
MOST_WARNINGS = 10
PENALTY_NAMES = {"l1": "plain", "l1_squared": "squared"}


def table(runs: Sequence[Run], mode: int = 1, reference: NDArray[Any] | None = None) -> list[Row]:
    """Summarise runs in one row per cell, in the order in which cells first occur.

    Parameters
    ----------
    runs
        The runs of a comparison, as in `ComparisonState.runs`.
    mode
        The mode, counted from 1, whose sparsity and components are reported.
    reference
        The true factor of that mode, shape (Iₘ, R), from which the PSNR is computed.

    Returns
    -------
    list of Row
        Mean and standard deviation over the repeats of each cell.

    Examples
    --------
    >>> from sparse_ncp import synthetic
    >>> from sparse_ncp.solvers.studies import ComparisonSettings, compare, table
    >>> made = synthetic.planted((20, 10, 8), rank=2)
    >>> *_, last = compare(made.tensor, ComparisonSettings(ranks=[2], methods=["hals"], repeats=2))
    >>> [row.runs for row in table(last.runs)]
    [2]
    """
    cells: dict[Cell, list[Run]] = {}
    for run in runs:
        cells.setdefault(run.cell, []).append(run)
    rows = []
    for cell, of_cell in cells.items():
        succeeded = [run for run in of_cell if run.error is None]
        ratios = [] if reference is None else [psnr(run.factors[mode - 1], reference) for run in succeeded]
        rows.append(Row.of(cell, of_cell, mode, matches(succeeded), ratios))
    return rows


def table_notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return what a reader of the table must know: which objectives cannot be compared, and that runs have warned."""
    notes = []
    methods: dict[str, list[str]] = {}
    for row in rows:
        if row.penalty is not None and row.method not in methods.setdefault(row.penalty, []):
            methods[row.penalty].append(row.method)
    if len(methods) > 1:
        groups = " and ".join(
            f"the {PENALTY_NAMES[penalty]} penalty ({penalty}: {', '.join(names)})"
            for penalty, names in methods.items()
        )
        notes.append(
            f"Objectives with {groups} are different functions, and their weights mean different things: compare them "
            "within one penalty only, and relative errors with care."
        )
    warned = sum(row.warned for row in rows)
    if warned:
        of = sum(row.runs for row in rows)
        notes.append(f"{warned} of {of} runs ended with a warning: see the warnings of each row.")
    return tuple(notes)


def check_reference(reference: NDArray[Any], shape: Sequence[int], mode: int) -> None:
    """Raise InvalidInput unless the reference can be a factor of this mode."""
    if not 1 <= mode <= len(shape):
        raise InvalidInput("mode", f"is {mode} for {len(shape)} modes", f"count the modes from 1 to {len(shape)}")
    if reference.ndim != 2 or len(reference) != shape[mode - 1]:
        remedy = f"give {shape[mode - 1]} rows, the length of mode {mode}, and a column per component"
        raise InvalidInput("reference", f"has shape {reference.shape}", remedy)
