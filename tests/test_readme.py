"""The README's examples run as they stand."""

import re
from pathlib import Path

import pytest

from solvers import Settings, Stop

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


@pytest.mark.parametrize(("schema", "prefix"), [(Settings, ""), (Stop, "stop.")])
def test_the_table_of_settings_is_the_schema(schema, prefix):
    for name, field in schema.model_fields.items():
        if name == "stop":
            continue
        default = "–" if field.default is None else f"`{field.default}`"
        row = f"| `{prefix}{name}` | {'required' if field.is_required() else default} | {field.description} |"
        assert row in README
