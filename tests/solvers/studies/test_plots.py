"""Every picture is made, valid in every format, and labelled."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from sparse_ncp.solvers import History, Settings, solve
from sparse_ncp.solvers.studies import ComparisonSettings, compare, plots, table
from sparse_ncp.solvers.studies.runs import Run
from sparse_ncp.solvers.studies.settings import Cell
from tests.solvers.studies import planted

TENSOR, TRUE = planted.made("clipped")
BEGINS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


LABELS = [
    plots.Labels("sample", [f"s{place}" for place in range(20)]),
    plots.Labels("emission [nm]", [250.0 + place for place in range(16)]),
    plots.Labels("excitation [nm]"),
]


def runs(**fields: Any) -> tuple[Run, ...]:
    grid = {"ranks": [2, 6], "methods": ["hals", "mu"], "repeats": 2, "stop": {"max_iterations": 10}, **fields}
    *_, last = compare(TENSOR, ComparisonSettings.model_validate(grid), threads=1)
    return last.runs


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    by_beta, by_sparsity = runs(betas=[0.0, 0.1]), runs(sparsities=[0.01, 0.05])
    failed = [Run(Cell(rank=2, method="als", beta=0.0, sparsity=None), 0, error="alpha: …")]
    return {
        "choice": plots.choice(planted.choice("clipped")),
        "choice without a count": plots.choice(planted.choice("growing")),
        "objective": plots.objective(by_beta),
        "objective by sparsity": plots.objective(by_sparsity),
        "objective of failed runs": plots.objective(failed),
        "quality": plots.quality(by_beta, 1, TRUE[0]),
        "quality without a reference": plots.quality(by_beta),
        "quality of failed runs": plots.quality(failed),
        "path": plots.path(table(by_beta)),
        "path by sparsity": plots.path(table(by_sparsity)),
        "path of failed runs": plots.path(table(failed)),
        "convergence": plots.convergence(solve(TENSOR, Settings.recommended(rank=3), threads=1).history),
        "convergence of nothing": plots.convergence(History()),
        "components": plots.components(by_beta[-1].factors),
        "components with labels": plots.components(by_beta[-1].factors, LABELS),
        "no components": plots.components([np.zeros((4, 2)), np.zeros((3, 2))]),
        "many components": plots.components([np.ones((4, 40)), np.ones((3, 40))]),
    }


NAMES = [
    "choice", "choice without a count", "objective", "objective by sparsity", "objective of failed runs", "quality",
    "quality without a reference", "quality of failed runs", "path", "path by sparsity", "path of failed runs",
    "convergence", "convergence of nothing", "components", "components with labels", "no components", "many components",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_every_picture_is_made_in_every_format(figures: dict[str, Figure], name: str, format: plots.Format) -> None:
    assert sorted(figures) == sorted(NAMES)
    assert plots.render(figures[name], format).startswith(BEGINS[format])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "no components"])
def test_every_axis_is_labelled(figures: dict[str, Figure], name: str) -> None:
    axes = figures[name].axes
    assert any(axis.get_xlabel() for axis in axes)
    assert any(axis.get_ylabel() for axis in axes) or any(label.get_text() for label in axes[0].get_yticklabels())


def test_a_picture_of_nothing_says_so(figures: dict[str, Figure]) -> None:
    for name, words in (
        ("no components", "every component is zero"),
        ("convergence of nothing", "no sweep has ended"),
        ("objective of failed runs", "no run has ended"),
        ("quality of failed runs", "no two runs to compare"),
    ):
        assert words in {text.get_text() for axis in figures[name].axes for text in axis.texts}


@pytest.mark.parametrize("format", BEGINS)
def test_the_same_factors_make_the_same_bytes(format: plots.Format) -> None:
    one, other = (plots.render(plots.components(TRUE, LABELS), format) for _ in range(2))
    assert one == other


def test_labels_stand_under_their_modes(figures: dict[str, Figure]) -> None:
    bottom = figures["components with labels"].axes[-3:]
    assert [axis.get_xlabel() for axis in bottom] == ["sample", "emission [nm]", "excitation [nm]"]
    assert bottom[1].get_xlim()[0] > 240
    few = plots.components(
        [np.ones((2, 1)), np.ones((3, 1))], [plots.Labels("who", ["Ann", "Bo"]), plots.Labels("day")]
    )
    assert [label.get_text() for label in few.axes[0].get_xticklabels()] == ["Ann", "Bo"]


def test_the_choice_is_marked_and_named(figures: dict[str, Figure]) -> None:
    assert figures["choice"].get_suptitle() == "components: 3 (confidence: very)"
    assert figures["choice without a count"].get_suptitle() == "suggestion: 3 (confidence: no)"
