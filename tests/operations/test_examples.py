"""The notebooks of examples/ run as they are, from the first cell to the last."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def cells(path: Path) -> list[Any]:
    notebook: dict[str, list[Any]] = json.loads(path.read_text())
    return notebook["cells"]


def run_notebook(name: str) -> str:
    """Run all code cells in one namespace, and return what they print."""
    code = [cell["source"] for cell in cells(ROOT / "examples" / name) if cell["cell_type"] == "code"]
    source = "\n".join(map("".join, code))
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(source, name, "exec"), {})
    return output.getvalue()


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive:UserWarning")
def test_the_fluorescence_notebook_predicts_the_concentrations() -> None:
    printed = run_notebook("fluorescence.ipynb")
    assert "sample 17 has a leverage" in printed
    assert "3 components" in printed
    errors = [float(line.split()[-2]) for line in printed.splitlines() if line.startswith("dye")]
    assert len(errors) == 3
    assert max(errors) < 0.02


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive:UserWarning")
def test_the_eeg_notebook_finds_the_three_sources() -> None:
    printed = run_notebook("eeg.ipynb")
    assert float(printed.partition("three sources ")[2].split()[0]) > 0.9


def test_the_session_ends_with_scored_samples_and_a_stopped_server() -> None:
    printed = run_notebook("server.ipynb")
    assert "succeeded after" in printed
    assert "6 samples scored" in printed
    assert printed.splitlines()[-1] == "stopped with 0"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_has_no_output_and_names_no_folder_of_a_machine(path: Path) -> None:
    assert all(cell["outputs"] == [] for cell in cells(path) if cell["cell_type"] == "code")
    assert not any(f"/{folder}/" in path.read_text() for folder in ("home", "root", "Users", "work"))


def test_every_notebook_is_in_the_list() -> None:
    listed = (ROOT / "examples/README.md").read_text()
    assert NOTEBOOKS
    assert all(path.name in listed for path in NOTEBOOKS)
