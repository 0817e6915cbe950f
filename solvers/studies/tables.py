"""The table of a comparison: its rows, and their text as CSV or LaTeX."""

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeAlias

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from sparse_ncp.solvers.errors import InvalidInput
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
    runs: int = Field(description="runs that succeeded or failed")
    failures: int = Field(description="runs that failed")
    best: int | str | None = Field(description="repeat or job with the lowest objective")
    objective: Measured
    relative_error: Measured
    seconds: Measured
    iterations: Measured
    sparsity: Measured = Field(description="fraction of zeros in the factor of the table's mode")
    components: Measured = Field(description="nonzero components in the factor of the table's mode")
    factor_match: Measured = Field(description="between pairs of the first 45 repeats; null for a single run")
    psnr: Measured = Field(description="of the reference factor, in dB; null without a reference")

    @property
    def cell(self) -> Cell:
        """The combination of settings that the row summarises."""
        return Cell(rank=self.rank, method=self.method, beta=self.beta, sparsity=self.requested_sparsity)

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
        return cls(
            rank=cell.rank,
            method=cell.method,
            beta=cell.beta,
            requested_sparsity=cell.sparsity,
            runs=len(runs),
            failures=len(runs) - len(succeeded),
            best=None if best is None else best.repeat if best.job_id is None else best.job_id,
            objective=Spread.of([run.objective for run in succeeded]),
            relative_error=Spread.of([run.relative_error for run in succeeded]),
            seconds=Spread.of([run.seconds for run in succeeded]),
            iterations=Spread.of([run.iterations for run in succeeded]),
            sparsity=Spread.of([run.sparsity[mode - 1] for run in succeeded]),
            components=Spread.of([run.components[mode - 1] for run in succeeded]),
            factor_match=Spread.of(factor_match),
            psnr=Spread.of(psnr),
        )


Measure = Literal[
    "objective", "relative_error", "seconds", "iterations", "sparsity", "components", "factor_match", "psnr"
]


@dataclass(frozen=True)
class Column:
    measure: Measure
    title: str
    digits: str  # format of mean and deviation in LaTeX


COLUMNS = (
    Column("objective", "Objective", ".4g"),
    Column("relative_error", "Relative error", ".4f"),
    Column("seconds", "Time [s]", ".2f"),
    Column("iterations", "Iterations", ".0f"),
    Column("sparsity", "Sparsity", ".3f"),
    Column("components", "Components", ".1f"),
    Column("factor_match", "Factor match", ".3f"),
    Column("psnr", "PSNR [dB]", ".2f"),
)
CELL = ("rank", "method", "beta", "requested_sparsity")


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


def check_reference(reference: NDArray[Any], shape: Sequence[int], mode: int) -> None:
    """Raise InvalidInput unless the reference can be a factor of this mode."""
    if not 1 <= mode <= len(shape):
        raise InvalidInput("mode", f"is {mode} for {len(shape)} modes", f"count the modes from 1 to {len(shape)}")
    if reference.ndim != 2 or len(reference) != shape[mode - 1]:
        remedy = f"give {shape[mode - 1]} rows, the length of mode {mode}, and a column per component"
        raise InvalidInput("reference", f"has shape {reference.shape}", remedy)


def to_csv(rows: Sequence[Row]) -> str:
    """Return a table as CSV, one line per cell.

    Numbers are written in full, so reading them back gives the same bits; a missing value is an empty field. The last
    column repeats `requested_sparsity` under its former name, `asked_sparsity`.
    """
    text = io.StringIO()
    spreads = [f"{column.measure}_{part}" for column in COLUMNS for part in ("mean", "deviation")]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*CELL, "runs", "failures", "best", *spreads, "asked_sparsity"])
    for row in rows:
        cell = [getattr(row, name) for name in CELL]
        parts = [part for column in COLUMNS for part in _parts(getattr(row, column.measure))]
        values = (*cell, row.runs, row.failures, row.best, *parts, row.requested_sparsity)
        writer.writerow(["" if value is None else value for value in values])
    return text.getvalue()


def to_latex(rows: Sequence[Row]) -> str:
    """Return a table as a booktabs `tabular`, mean ± standard deviation; columns without any value are left out."""
    shown = [column for column in COLUMNS if any(getattr(row, column.measure) is not None for row in rows)]
    weight = "$\\beta$" if all(row.requested_sparsity is None for row in rows) else "Requested sparsity"
    titles = ["$R$", "Method", weight, *(column.title for column in shown), "Failures"]
    lines = [f"\\begin{{tabular}}{{rlr{'r' * (len(shown) + 1)}}}", "\\toprule", _line(titles), "\\midrule"]
    for row in rows:
        requested = row.beta if row.requested_sparsity is None else row.requested_sparsity
        spreads = [_in_latex(getattr(row, column.measure), column.digits) for column in shown]
        lines.append(_line([str(row.rank), row.method, f"{requested:g}", *spreads, f"{row.failures} of {row.runs}"]))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _parts(spread: Spread | None) -> tuple[float | None, float | None]:
    return (None, None) if spread is None else (spread.mean, spread.deviation)


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _in_latex(spread: Spread | None, digits: str) -> str:
    if spread is None:
        return "--"
    if math.isinf(spread.mean):
        return r"$-\infty$" if spread.mean < 0 else r"$\infty$"
    return rf"${spread.mean:{digits}} \pm {spread.deviation:{digits}}$"
