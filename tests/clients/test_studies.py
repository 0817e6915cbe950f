"""Studies with the client and the command: watch, wait, and download tables and plots."""

import csv
import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from ncp_client import Client, NcpError, Refused, Tensor
from ncp_client.cli.commands import run
from ncp_client.fields import StudyFields
from ncp_client.study import PICTURES, PLOTS, SPREADS, TABLES
from sparse_ncp.app.main import create_app
from sparse_ncp.worker.config import Configuration
from tests.support.api import Api, npy, planted

TENSOR = planted(9, 8, 7)
GRID: dict[str, Any] = {"ranks": [2, 3], "methods": ["anls-bpp"], "repeats": 2, "stop": {"max_iterations": 10}}


def schemas() -> dict[str, Any]:
    found: dict[str, Any] = create_app(Configuration()).openapi()
    return found


def test_every_field_of_a_study_can_be_given_by_name() -> None:
    """So the client cannot drift from the server: a new field of a study must be named in ncp_client/fields.py."""
    kinds = schemas()["components"]["schemas"]
    requests = ("CompareRequest", "ChooseRequest", "StabilityRequest")
    known = {name for request in requests for name in kinds[request]["properties"]}
    assert {"kind", "tensor_id", *get_type_hints(StudyFields)} == known


def test_every_plot_format_and_column_is_known() -> None:
    document = schemas()
    parameters = {
        (path.rpartition("/")[2], one["name"]): one["schema"]
        for path in ("/v1/studies/{study_id}/plots/{plot}", "/v1/studies/{study_id}/table")
        for one in document["paths"][path]["get"]["parameters"]
    }
    assert set(parameters["{plot}", "plot"]["enum"]) == set(PLOTS)
    assert set(parameters["{plot}", "format"]["enum"]) == set(PICTURES)
    assert set(parameters["table", "format"]["enum"]) == set(TABLES.values())
    row = document["components"]["schemas"]["StudyRow"]["properties"]
    assert {name for name in row if "FiniteSpread" in str(row[name])} == set(SPREADS)


def test_a_comparison_comes_home_as_rows_a_frame_files_and_pictures(lab: Client, tmp_path: Path) -> None:
    study = lab.study(lab.upload(TENSOR), "compare", name="grid", **GRID)
    steps = [step.progress for step in study.watch()]
    assert steps == [0.25, 0.5, 0.75, 1.0]
    assert (study.state, study.ended, study.kind, study.advice) == ("succeeded", True, "compare", None)
    rows = study.table()
    assert [(row["rank"], row["runs"]) for row in rows] == [(2, 2), (3, 2)]
    runs = list(study.runs())
    best = min((run for run in runs if run.record["settings"]["rank"] == 3), key=lambda run: run.result.objective)
    assert rows[1]["best"] == best.id
    assert study.recommendation is not None
    assert study.recommendation["best"] in {row["best"] for row in rows}
    assert study.recommendation["title"].startswith(f"Rank {study.recommendation['rank']} – ")
    frame = study.frame(mode=2)
    assert list(frame["rank"]) == [2, 3]
    assert frame["objective_mean"][1] == rows[1]["objective_mean"]
    assert [one["rank"] for one in study.ranks()] == [2, 3]
    study.save_table(tmp_path / "table.csv")
    with (tmp_path / "table.csv").open() as file:
        assert [float(line["objective_mean"]) for line in csv.DictReader(file)] == [r["objective_mean"] for r in rows]
    study.save_table(tmp_path / "table.tex")
    assert (tmp_path / "table.tex").read_text().startswith("% needs")
    for name in ("objective", "quality", "path", "components"):
        study.plot(name, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="ends in"):
        study.plot("path", tmp_path / "path.gif")
    with pytest.raises(ValueError, match="choose one of"):
        study.plot("pie", tmp_path / "pie.png")
    with pytest.raises(NcpError, match="comparison"):
        _ = study.job
    assert next(one.id for one in lab.studies()) == study.id
    lab.get_study(study.id).delete()
    with pytest.raises(Refused):
        study.refresh()


def test_a_refused_study_names_the_field(lab: Client) -> None:
    with pytest.raises(Refused) as refusal:
        lab.study(lab.upload(TENSOR), "compare", ranks=[], methods=["hals"])
    assert [error.field for error in refusal.value.errors] == ["ranks"]
    with pytest.raises(TypeError, match="upload"):
        lab.study(TENSOR, "compare", ranks=[2])  # type: ignore[arg-type]


def test_the_command_submits_watches_and_prints_the_table(
    api_with_worker: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tensor.npy").write_bytes(npy(TENSOR))
    asked = ["--ranks", "2,3", "--methods", "anls-bpp", "--repeats", "2", "--max-iterations", "10"]
    outputs = ["--table", str(tmp_path / "t.csv"), "--plots", str(tmp_path / "plots"), "--url", api_with_worker.address]
    assert run(["study", "compare", str(tmp_path / "tensor.npy"), *asked, "--watch", *outputs]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split()[:3] == ["RANK", "METHOD", "WEIGHT"]
    assert [line.split()[:2] for line in said[1:3]] == [["2", "anls-bpp"], ["3", "anls-bpp"]]
    assert said[4].startswith("Rank ")
    assert said[5].startswith("- ")
    assert "- Neither split halves nor held-out entries were checked: request a validation to confirm the rank." in said
    assert (tmp_path / "t.csv").exists()
    assert {path.stem for path in (tmp_path / "plots").iterdir()} == {"objective", "quality", "path", "components"}
    assert run(["studies", "--limit", "1", "--json", "--url", api_with_worker.address]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["state"] == "succeeded"
    assert run(["show", listed["id"], "--url", api_with_worker.address]) == 0
    assert run(["delete", listed["id"], "--url", api_with_worker.address]) == 0


def test_the_command_says_why_a_validation_failed_below_the_table(
    api_with_worker: Api, unread_in_halves: Tensor, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--ranks", "2", "--methods", "anls-bpp", "--repeats", "1", "--missing", "nan"]
    halves = ["--validate", '{"split_half": {"mode": 1, "parts": 2}}', "--watch", "--url", api_with_worker.address]
    assert run(["study", "compare", unread_in_halves.id, *asked, *halves]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[1].split()[:2] == ["2", "anls-bpp"]
    assert "\nthe validation failed: validate.split_half: has halves in which index 4 of mode 2 has no" in said
    assert 'exclude={"2": [4]})\n' in said


def test_the_command_for_a_choice_prints_the_advice(
    api_with_worker: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tensor.npy").write_bytes(npy(planted(10, 9, 8, rank=2)))
    asked = ["--rank", "4", "--seeds", "1", "--url", api_with_worker.address]
    assert run(["study", "choose", str(tmp_path / "tensor.npy"), *asked, "--watch"]) == 0
    said = capsys.readouterr().out
    assert "(confidence: " in said
    assert ", range " in said
    assert re.search(r"cliff: the next component improves the fit far less +\d", said)
