"""The table of a comparison as text: CSV with every digit, and LaTeX for a paper."""

import csv
import io
import math
from collections.abc import Mapping, Sequence

from sparse_ncp.solvers.studies.tables import COLUMNS, PENALTY_NAMES, Column, Row, Spread, table_notes

CELL = ("rank", "method", "beta", "requested_sparsity", "penalty")
# Between the warnings of a row of CSV.
SEPARATOR = " | "
# Numbers outside of this range are written with a power of ten.
SMALLEST, LARGEST = 1e-4, 1e6
# A deviation below this fraction of the mean is not shown: the runs have found the same.
NEGLIGIBLE = 1e-4
_ESCAPES: Mapping[str, str] = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "‖": r"$\Vert$",
    "β": r"$\beta$",
    "×": r"$\times$",
}


def to_csv(rows: Sequence[Row]) -> str:
    """Return a table as CSV, one line per cell.

    Numbers are written in full, so reading them back gives the same bits; a missing value is an empty field. Warnings
    stand in one field, with " | " between them. The last column repeats `requested_sparsity` under its former name,
    `asked_sparsity`.
    """
    text = io.StringIO()
    spreads = [f"{column.measure}_{part}" for column in COLUMNS for part in ("mean", "deviation")]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*CELL, "runs", "failures", "best", *spreads, "warned", "warnings", "asked_sparsity"])
    for row in rows:
        cell = [getattr(row, name) for name in CELL]
        parts: list[float | None] = []
        for column in COLUMNS:
            spread: Spread | None = getattr(row, column.measure)
            parts += (None, None) if spread is None else (spread.mean, spread.deviation)
        warned = row.warned, SEPARATOR.join(row.warnings)
        values = (*cell, row.runs, row.failures, row.best, *parts, *warned, row.requested_sparsity)
        writer.writerow(["" if value is None else value for value in values])
    return text.getvalue()


def to_latex(rows: Sequence[Row], caption: str | None = None, label: str = "tab:comparison") -> str:
    r"""Return a table for a paper, which needs the packages booktabs and siunitx.

    Means and standard deviations are rounded to two digits of the deviation, which is left out where it is less than a
    ten-thousandth of the mean. The best of the methods with one rank,
    weight and penalty are bold. Columns without any value are left out, and warnings are comments.

    Parameters
    ----------
    rows
        The rows of a comparison.
    caption
        The caption, as LaTeX; by default it says what the columns are.
    label
        The name for ``\ref``.

    Returns
    -------
    str
        A `table` environment.
    """
    shown = [column for column in COLUMNS if any(getattr(row, column.measure) is not None for row in rows)]
    weight = r"$\beta$" if all(row.requested_sparsity is None for row in rows) else "Requested sparsity"
    differ = len({row.penalty for row in rows if row.penalty is not None}) > 1
    titles = ["$R$", "Method", weight, *["Penalty"][: int(differ)], *(column.title for column in shown), "Failures"]
    written = {column.measure: [_spread(getattr(row, column.measure)) for row in rows] for column in shown}
    bold = {column.measure: _best(rows, column, written[column.measure]) for column in shown}
    if caption is None:
        several = max((row.runs for row in rows), default=0)
        of = f" and standard deviation of {several} runs" if several > 1 else " of one run"
        caption = f"Comparison of methods: mean{of} of each setting."
        if any(place for places in bold.values() for place in places):
            caption += " The best method of each rank and weight is bold."
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage{siunitx}",
        r"\begin{table}",
        r"  \centering",
        r"  \sisetup{separate-uncertainty = true, detect-weight = true, mode = text}",
        rf"  \caption{{{caption}}}",
        rf"  \label{{{label}}}",
        rf"  \begin{{tabular}}{{rlr{'l' if differ else ''}{'r' * (len(shown) + 1)}}}",
        r"    \toprule",
        _line(titles),
        r"    \midrule",
    ]
    for place, row in enumerate(rows):
        penalty = ["--" if row.penalty is None else PENALTY_NAMES[row.penalty]] if differ else []
        spreads = [
            rf"\bfseries {written[column.measure][place]}"
            if place in bold[column.measure]
            else written[column.measure][place]
            for column in shown
        ]
        failures = f"{row.failures} of {row.runs}"
        lines.append(_line([str(row.rank), row.method, _number(row.weight, None), *penalty, *spreads, failures]))
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    lines += [rf"  \par\footnotesize {_escape(note)}" for note in table_notes(rows)]
    lines += [f"  % {row.cell}: {' '.join(text.split())}" for row in rows for text in row.warnings]
    return "\n".join([*lines, r"\end{table}", ""])


def _line(cells: Sequence[str]) -> str:
    return "    " + " & ".join(cells) + r" \\"


def _escape(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)


def _best(rows: Sequence[Row], column: Column, written: Sequence[str]) -> set[int]:
    """Return the places of the rows that are best of those with the same rank, weight and penalty."""
    if column.best is None:
        return set()
    sign = 1.0 if column.best == "least" else -1.0
    groups: dict[object, list[int]] = {}
    for place, row in enumerate(rows):
        spread: Spread | None = getattr(row, column.measure)
        if spread is not None and math.isfinite(spread.mean):
            groups.setdefault((row.rank, row.weight, row.penalty), []).append(place)
    best = set[int]()
    for places in groups.values():
        means = {place: sign * getattr(rows[place], column.measure).mean for place in places}
        least = min(places, key=lambda place: means[place])
        same = {place for place in places if written[place] == written[least]}
        if len(same) < len(places):
            best |= same
    return best


def _spread(spread: Spread | None) -> str:
    r"""Write mean ± deviation with as many digits as the deviation justifies, for ``\num``."""
    if spread is None:
        return "--"
    if math.isinf(spread.mean):
        return r"$-\infty$" if spread.mean < 0 else r"$\infty$"
    return _number(spread.mean, spread.deviation if math.isfinite(spread.deviation) else None)


def _number(mean: float, deviation: float | None) -> str:
    r"""Write a number as ``\num{…}``, rounded to two digits of its deviation, or to five if there is none."""
    if not deviation or deviation < NEGLIGIBLE * abs(mean):
        return rf"\num{{{mean:.5g}}}"
    largest = max(abs(mean), deviation)
    power = math.floor(math.log10(largest)) if not SMALLEST <= largest < LARGEST else 0
    mean, deviation = mean / 10.0**power, deviation / 10.0**power
    digits = max(0, 1 - math.floor(math.log10(deviation)))
    exponent = f"e{power}" if power else ""
    return rf"\num{{{mean:.{digits}f} \pm {deviation:.{digits}f}{exponent}}}"
