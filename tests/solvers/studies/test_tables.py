"""Tables as text: nothing is lost, and LaTeX takes it as it is."""

import csv
import io
import math
import re

from sparse_ncp.solvers.studies.tables import COLUMNS, Row, Spread, to_csv, to_latex

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
    assert r"$0.3333 \pm 0.1000$" in text
    assert r"$-\infty$" in text
    assert "5 of 5" in text
    assert text.rstrip().endswith(r"\end{tabular}")


def test_a_measure_that_no_row_has_is_left_out_of_the_latex() -> None:
    assert "PSNR" in to_latex(ROWS)
    assert "PSNR" not in to_latex(ROWS[1:])
