"""Labels in tables: no spreadsheet takes one for a formula."""

import csv
import io
import json
import zipfile

import numpy as np
import pytest

from sparse_ncp.worker.contract import Axis
from sparse_ncp.worker.store.exports import Model, to_csv

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", " =1", "-", '=HYPERLINK("http://x")']
HARMLESS = ["-5", "+1.5e-3", "-.5", "M1", "a=b", "5-6", "'quoted"]


def tables(axes: list[Axis]) -> dict[str, list[list[str]]]:
    """Return the tables of an export, by name."""
    model = Model(
        [np.ones((len(axis.values), 1)) for axis in axes],
        {
            "components": np.array([1]),
            "weights": np.array([1.0]),
            "axes": json.dumps([axis.model_dump(mode="json") for axis in axes]),
        },
    )
    with zipfile.ZipFile(io.BytesIO(to_csv(model))) as archive:
        return {
            name: list(csv.reader(io.StringIO(archive.read(name).decode(), newline="")))
            for name in archive.namelist()
            if name.endswith(".csv")
        }


@pytest.mark.parametrize("text", FORMULAS)
def test_a_label_or_a_name_that_looks_like_a_formula_is_marked_as_text(text: str) -> None:
    axis = Axis.model_construct(name=text, unit=None, values=(text, "other"))
    header, first, _ = tables([axis, axis])["A1.csv"]
    assert header[0] == f"'{text}"
    assert first[0] == f"'{text}"


@pytest.mark.parametrize("text", HARMLESS)
def test_other_labels_stay_as_they_are(text: str) -> None:
    axis = Axis.model_construct(name="sample", unit=None, values=(text, "other"))
    assert tables([axis, axis])["A1.csv"][1][0] == text


def test_negative_numbers_stay_numbers() -> None:
    axis = Axis.model_construct(name="time", unit="ms", values=(-5.0, -0.25))
    assert [row[0] for row in tables([axis, axis])["A1.csv"]] == ["time (ms)", "-5", "-0.25"]
