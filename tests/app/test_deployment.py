"""What is written down for operators is true."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from tests.app.api import npy, planted
from tests.stack import ROOT, server
from worker.configuration import Configuration

README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "running-a-server.md").read_text()


def compose() -> dict[str, Any]:
    read: dict[str, Any] = YAML(typ="safe").load(ROOT / "docker-compose.yml")
    return read


@pytest.mark.parametrize("field", Configuration.model_fields)
def test_the_guide_tells_every_setting_with_its_default(field: str) -> None:
    row = re.search(rf"^\| `NCP_{field.upper()}` \| ([^|]*) \|", GUIDE, re.MULTILINE)
    assert row is not None, f"NCP_{field.upper()} is not in the guide's table"
    default = Configuration.model_fields[field].default
    assert row[1].strip() == (f"`{default}`" if default is not None else "–")


def test_nothing_tells_of_a_setting_that_is_not_there() -> None:
    told = {name.lower() for name in re.findall(r"NCP_([A-Z_]+[A-Z])", README + GUIDE)}
    assert told <= Configuration.model_fields.keys()


def test_the_compose_file_follows_the_schema() -> None:
    checker = [str(Path(sys.executable).parent / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*checker, str(ROOT / "docker-compose.yml")], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_compose_files_redis_keeps_every_record() -> None:
    command = " ".join(compose()["services"]["redis"]["command"])
    for promise in ("--appendonly yes", "--appendfsync always", "--maxmemory-policy noeviction"):
        assert promise in command


def test_the_compose_file_sets_only_settings_that_are_there() -> None:
    names = {name for part in compose()["services"].values() for name in part.get("environment", {})}
    names |= set(re.findall(r"(NCP_[A-Z_]+)=", (ROOT / "Dockerfile").read_text()))
    assert {name.removeprefix("NCP_").lower() for name in names} <= Configuration.model_fields.keys()


def test_workers_can_be_scaled_and_have_time_to_hand_jobs_back() -> None:
    worker = compose()["services"]["worker"]
    assert "container_name" not in worker
    assert "ports" not in worker
    assert float(worker["stop_grace_period"].removesuffix("s")) >= Configuration.model_fields["stop_seconds"].default
    assert all("stop_grace_period" in part for part in compose()["services"].values())


def test_the_compose_file_publishes_on_loopback_only() -> None:
    ports = [port for part in compose()["services"].values() for port in part.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_image_runs_as_nobody_special_and_reports_its_health() -> None:
    lines = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER ncp$", lines, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", lines, re.MULTILINE)
    assert "--compile" in lines


@pytest.mark.skipif(shutil.which("curl") is None, reason="the lines to be tried are curl's")
def test_the_readmes_first_job_runs_as_written(tmp_path: Path) -> None:
    shell, python = (
        re.search(rf"### First job\n.*?```{kind}\n(.*?)```", README, re.DOTALL) for kind in ("sh", "python")
    )
    assert shell is not None
    assert python is not None
    (tmp_path / "tensor.npy").write_bytes(npy(planted(9, 8, 7)))
    with server(tmp_path, min_free_bytes=1) as running:
        by_shell, by_python = (
            subprocess.run(
                [*command, example[1].replace("http://127.0.0.1:8000", running.address)],
                cwd=tmp_path, capture_output=True, text=True, check=False,
            )
            for command, example in ((["bash", "-eu", "-c"], shell), ([sys.executable, "-c"], python))
        )  # fmt: skip
    for ran in (by_shell, by_python):
        assert ran.returncode == 0, ran.stderr
        assert "event: end" in ran.stdout
    with np.load(tmp_path / "factors.npz") as factors:
        assert [factors[f"A{mode}"].shape for mode in (1, 2, 3)] == [(9, 8), (8, 8), (7, 8)]
    assert by_python.stdout.endswith("{'A1': (40, 3), 'A2': (30, 3), 'A3': (20, 3)}\n")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd on this machine")
def test_the_published_unit_is_sound_and_leaves_time_to_hand_jobs_back(tmp_path: Path) -> None:
    found = re.search(r"```ini\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None, "the guide shows no unit"
    unit = tmp_path / "ncp.service"
    unit.write_text(found[1].replace("/opt/ncp/venv/bin/ncp serve", sys.executable))
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "ncp.service" not in checked.stderr
    seconds = re.search(r"^TimeoutStopSec=(\d+)$", found[1], re.MULTILINE)
    assert seconds is not None
    assert int(seconds[1]) > Configuration.model_fields["stop_seconds"].default
