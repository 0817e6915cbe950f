"""Tables as text: nothing is lost, and LaTeX takes it as it is."""

import csv
import io
import math
import re
from typing import Any

import pytest

from sparse_ncp.solvers.studies.table_text import to_csv, to_latex
from sparse_ncp.solvers.studies.tables import COLUMNS, Row, Spread, table_notes

WHOLE = Spread(1 / 3, 0.1)
MEASURES = {column.measure: WHOLE for column in COLUMNS}
ROWS = [
    Row(rank=4, method="anls-bpp", beta=0.1, requested_sparsity=None, runs=5, failures=1, best=2,
        **{**MEASURES, "psnr": Spread(-math.inf, math.nan)}),
    Row(rank=20, method="mu", beta=0.0, requested_sparsity=None, runs=5, failures=5, best=None,
        **dict.fromkeys(MEASURES)),
]  # fmt: skip


def test_a_csv_gives_every_number_back() -> None:
    first, second = csv.DictReader(io.StringIO(to_csv(ROWS)))
    for column in COLUMNS[:-1]:
        assert float(first[f"{column.measure}_mean"]) == 1 / 3
        assert float(first[f"{column.measure}_deviation"]) == 0.1
        assert second[f"{column.measure}_mean"] == ""
    assert float(first["psnr_mean"]) == -math.inf
    assert (first["rank"], first["method"], first["beta"], first["requested_sparsity"]) == ("4", "anls-bpp", "0.1", "")
    assert (first["runs"], first["failures"], first["best"]) == ("5", "1", "2")
    assert first["asked_sparsity"] == first["requested_sparsity"]
    assert (second["failures"], second["best"]) == ("5", "")


def test_every_line_of_the_latex_has_as_many_cells_as_columns() -> None:
    text = to_latex(ROWS)
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert columns is not None
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 3
    assert {line.count("&") + 1 for line in lines} == {len(columns[1])}
    assert r"\num{0.33 \pm 0.10}" in text
    assert r"$-\infty$" in text
    assert "5 of 5" in text
    assert text.rstrip().endswith(r"\end{table}")
    assert r"\caption{" in text
    assert r"\label{tab:comparison}" in text


@pytest.mark.parametrize(
    ("spread", "written"),
    [
        (Spread(1234.567, 8.91), r"\num{1234.6 \pm 8.9}"),
        (Spread(0.0123456, 0.000321), r"\num{0.01235 \pm 0.00032}"),
        (Spread(1.5e9, 2e7), r"\num{1.500 \pm 0.020e9}"),
        (Spread(2e-7, 3e-7), r"\num{2.0 \pm 3.0e-7}"),
        (Spread(120.0, 99.6), r"\num{120 \pm 100}"),
        (Spread(0.0564348946, 6e-11), r"\num{0.056435}"),
        (Spread(4.0, 0.0), r"\num{4}"),
        (Spread(0.0, 0.5), r"\num{0.00 \pm 0.50}"),
    ],
)
def test_mean_and_deviation_have_the_same_last_digit(spread: Spread, written: str) -> None:
    assert written in to_latex([row(objective=spread)])


def row(method: str = "hals", **fields: Any) -> Row:
    same = {"rank": 2, "beta": 0.1, "requested_sparsity": None, "penalty": "l1", "runs": 5, "failures": 0, "best": 0}
    return Row.model_validate({**same, **dict.fromkeys(MEASURES), "method": method, **fields})


def test_the_best_method_of_each_rank_weight_and_penalty_is_bold() -> None:
    text = to_latex(
        [
            row("hals", objective=Spread(3.0, 0.1), factor_match=Spread(0.9, 0.01)),
            row("apg", objective=Spread(2.0, 0.1), factor_match=Spread(0.8, 0.01)),
            row("anls-as", objective=Spread(1.0, 0.1), penalty="l1_squared"),
            row("hals", objective=Spread(0.5, 0.1), rank=3),
        ]
    )
    bold = [line.split("&")[1].strip() for line in text.splitlines() if r"\bfseries \num" in line]
    assert bold == ["hals", "apg"]
    assert r"\bfseries \num{2.00 \pm 0.10}" in text
    assert r"\bfseries \num{0.900 \pm 0.010}" in text


def test_rows_with_different_penalties_have_a_column_and_a_footnote() -> None:
    rows = [row("hals"), row("anls-as", penalty="l1_squared"), row("apg", beta=0.0, penalty=None)]
    [note] = table_notes(rows)
    assert "plain penalty (l1: hals) and the squared penalty (l1_squared: anls-as)" in note
    assert r"l1\_squared: anls-as" in to_latex(rows)
    assert "& Penalty &" in to_latex(rows)
    assert [line["penalty"] for line in csv.DictReader(io.StringIO(to_csv(rows)))] == ["l1", "l1_squared", ""]
    assert table_notes([rows[0], rows[2]]) == ()
    assert "Penalty" not in to_latex([rows[0], rows[2]])


def test_warnings_reach_every_text() -> None:
    warned = row(warned=2, warnings=("components 1 and 2 are alike; lower the rank", "100 % of it"))
    [line] = csv.DictReader(io.StringIO(to_csv([warned])))
    assert (line["warned"], line["warnings"]) == ("2", "components 1 and 2 are alike; lower the rank | 100 % of it")
    text = to_latex([warned])
    assert "  % rank 2, hals, beta 0.1: components 1 and 2 are alike; lower the rank" in text
    assert r"2 of 5 runs ended with a warning" in text


def test_a_measure_that_no_row_has_is_left_out_of_the_latex() -> None:
    assert "PSNR" in to_latex(ROWS)
    assert "PSNR" not in to_latex(ROWS[1:])
