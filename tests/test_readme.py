"""The README's examples run as they stand."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))


def test_the_ten_lines_find_four_components_and_plot_them(capsys):
    exec(EXAMPLES[0], {})
    assert capsys.readouterr().out == "4 components, relative error 0.0431\n"
    assert Path("components.png").read_bytes().startswith(b"\x89PNG")


def test_the_long_run_resumes_and_ends(capsys):
    exec(EXAMPLES[1], {})
    assert capsys.readouterr().out.splitlines()[-1] == "tolerance"
