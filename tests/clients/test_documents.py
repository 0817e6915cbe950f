"""The guide to the client: every snippet runs as written, and every table agrees with the code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ncp_client
from ncp_client import Client, Job, Result, Study
from ncp_client.cli.exit_codes import ExitCode
from tests.support.api import Api
from tests.support.stack import ROOT

GUIDE = (ROOT / "docs/how-to/python.md").read_text()


@pytest.fixture(autouse=True)
def server_of_the_variables(api_with_worker: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCP_URL", api_with_worker.address)


def snippets(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path) -> str:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_first_snippet_finds_three_components_and_draws_them(tmp_path: Path) -> None:
    said = run([sys.executable, "-c", snippets("python")[0]], tmp_path)
    assert said == "3 [(40, 6), (30, 6), (20, 6)]\n"
    assert (tmp_path / "components.png").read_bytes().startswith(b"\x89PNG")


def test_the_single_steps_run_as_written(tmp_path: Path) -> None:
    said = run([sys.executable, "-c", snippets("python")[1]], tmp_path).splitlines()
    assert said[0].startswith("1 ")
    assert said[-2].startswith("succeeded 0.")
    assert said[-1].startswith("beta: ")
    assert (tmp_path / "factors.mat").exists()


def test_the_studies_run_as_written(tmp_path: Path) -> None:
    said = run([sys.executable, "-c", snippets("python")[2]], tmp_path).splitlines()
    assert said[:6] == ["17%", "33%", "50%", "67%", "83%", "100%"]
    assert said[6].startswith("2 0.")
    assert said[8].startswith("2 ")
    assert said[9] == "(12, 2)"
    assert (tmp_path / "quality.svg").exists()


def test_the_commands_run_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    said = run(["bash", "-eu", "-c", snippets("sh")[0]], tmp_path)
    assert "3 of 6 components" in said
    assert {"factors.npz", "components.png", "table.csv", "plots"} <= {path.name for path in tmp_path.iterdir()}


def test_the_tables_name_what_is_there() -> None:
    owners = {"client": Client, "job": Job, "study": Study}
    for owner, name in re.findall(r"`(client|job|study)\.(\w+)", GUIDE):
        assert hasattr(owners[owner], name) or name == "record", f"{owner}.{name}"
    row = re.search(r"^\| `job.result` \| (.*) \|$", GUIDE, re.MULTILINE)
    assert row is not None
    for name in re.findall(r"`(\w+)(?:\(\))?`", row[1]):
        assert hasattr(Result, name) or name in {"factors", "numbers"}, name
    for name in re.findall(
        r"`(NcpError|Refused|NotFound|Unauthorized|RateLimited|ServerUnavailable|JobFailed)`", GUIDE
    ):
        assert issubclass(getattr(ncp_client, name), ncp_client.NcpError)


def test_the_table_of_exit_codes_is_complete(tmp_path: Path) -> None:
    table = re.search(r"^\| exit code \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", GUIDE, re.MULTILINE)
    assert table is not None
    assert table[1] == "".join(f"| {code} | {code.description} |\n" for code in ExitCode)
    shown = run([sys.executable, "-m", "ncp_client.cli.main", "--help"], tmp_path)
    assert [line.split(maxsplit=1) for line in shown.partition("Exit codes:\n")[2].splitlines()] == [
        [str(code), code.description] for code in ExitCode
    ]
