"""The table of a comparison as text: CSV for programs, LaTeX for papers."""

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.metrics import psnr
from sparse_ncp.solvers.studies.runs import Run, matches
from sparse_ncp.solvers.studies.settings import Cell


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the repeats; the deviation of a single one is zero."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        if not values:
            return None
        if not all(map(math.isfinite, values)):  # a PSNR of no component at all
            return cls(math.fsum(values) / len(values), math.nan)
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True)
class Row:
    """One cell of the grid over its repeats. Sparsity, components and PSNR are those of one mode."""

    cell: Cell
    runs: int
    failures: int
    objective: Spread | None
    relative_error: Spread | None
    seconds: Spread | None
    iterations: Spread | None
    sparsity: Spread | None
    components: Spread | None
    factor_match: Spread | None  # between repeats; None for a single one
    psnr: Spread | None  # against the reference, if there is one
    best: int | str | None  # the repeat of the lowest objective, or the name of its run


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
CELL = ("rank", "method", "beta", "sparsity")


def table(runs: Sequence[Run], mode: int = 1, reference: NDArray[Any] | None = None) -> list[Row]:
    """One row per cell, in the order in which cells first come. `reference` has the true factor of that mode."""
    cells: dict[Cell, list[Run]] = {}
    for run in runs:
        cells.setdefault(run.cell, []).append(run)
    return [_row(cell, of_cell, mode, reference) for cell, of_cell in cells.items()]


def _row(cell: Cell, runs: list[Run], mode: int, reference: NDArray[Any] | None) -> Row:
    done = [run for run in runs if run.error is None]
    return Row(
        cell=cell,
        runs=len(runs),
        failures=len(runs) - len(done),
        objective=Spread.of([run.objective for run in done]),
        relative_error=Spread.of([run.relative_error for run in done]),
        seconds=Spread.of([run.seconds for run in done]),
        iterations=Spread.of([run.iterations for run in done]),
        sparsity=Spread.of([run.sparsity[mode - 1] for run in done]),
        components=Spread.of([run.components[mode - 1] for run in done]),
        factor_match=Spread.of(matches(done)),
        psnr=Spread.of([psnr(run.factors[mode - 1], reference) for run in done]) if reference is not None else None,
        best=min(done, key=lambda run: run.objective).repeat if done else None,
    )


def check_reference(reference: NDArray[Any], shape: Sequence[int], mode: int) -> None:
    """Refuse a factor that is not one of this mode."""
    if not 1 <= mode <= len(shape):
        raise InvalidInput("mode", f"is {mode} for {len(shape)} modes", f"count the modes from 1 to {len(shape)}")
    if reference.ndim != 2 or len(reference) != shape[mode - 1]:
        remedy = f"give {shape[mode - 1]} rows, the length of mode {mode}, and a column per component"
        raise InvalidInput("reference", f"has shape {reference.shape}", remedy)


def to_csv(rows: Sequence[Row]) -> str:
    """One line per cell; numbers in full, so that reading them back gives the same bits. Nothing stands for none."""
    text = io.StringIO()
    spreads = [f"{column.measure}_{part}" for column in COLUMNS for part in ("mean", "deviation")]
    # A cell's own sparsity is what was asked for, a row's is what came out: they need two names.
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["rank", "method", "beta", "asked_sparsity", "runs", "failures", "best", *spreads])
    for row in rows:
        cell = [getattr(row.cell, name) for name in CELL]
        parts = [part for column in COLUMNS for part in _parts(getattr(row, column.measure))]
        table.writerow(["" if value is None else value for value in (*cell, row.runs, row.failures, row.best, *parts)])
    return text.getvalue()


def to_latex(rows: Sequence[Row]) -> str:
    """A `tabular` of booktabs, mean ± standard deviation; columns that no row has are left out."""
    shown = [column for column in COLUMNS if any(getattr(row, column.measure) is not None for row in rows)]
    weight = "$\\beta$" if all(row.cell.sparsity is None for row in rows) else "Sparsity asked"
    titles = ["$R$", "Method", weight, *(column.title for column in shown), "Failures"]
    lines = [f"\\begin{{tabular}}{{rlr{'r' * (len(shown) + 1)}}}", "\\toprule", _line(titles), "\\midrule"]
    for row in rows:
        asked = row.cell.beta if row.cell.sparsity is None else row.cell.sparsity
        spreads = [_in_latex(getattr(row, column.measure), column.digits) for column in shown]
        lines.append(
            _line([str(row.cell.rank), row.cell.method, f"{asked:g}", *spreads, f"{row.failures} of {row.runs}"])
        )
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
