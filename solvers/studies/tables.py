"""The table of a comparison as text: CSV for programs, LaTeX for papers."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sparse_ncp.solvers.studies.comparison import Row, Spread

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
