"""The documented systemd unit: valid and restrictive, and the server runs under its restrictions."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sparse_ncp.worker.config import Configuration
from tests.support.api import finished, http_client, planted, submit, upload
from tests.support.languages import missing_tool
from tests.support.machine.restricted import NUMBERS
from tests.support.stack import ROOT, end_tree, wait_for

# Of ten, where a unit without any such setting has 9.6.
HIGHEST_EXPOSURE = 3.0
GUIDE = (ROOT / "docs" / "how-to" / "running-a-server.md").read_text()


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    if shutil.which("systemd-analyze") is None:
        missing_tool("there is no systemd-analyze on this machine")
    found = re.search(r"```ini\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None, "the guide shows no unit"
    path = tmp_path / "ncp.service"
    path.write_text(found[1])
    return path


def analyzed(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def test_the_published_unit_is_sound_and_leaves_time_to_hand_jobs_back(unit: Path) -> None:
    text = unit.read_text()
    unit.write_text(text.replace("/opt/ncp/venv/bin/ncp serve", sys.executable))
    checked = analyzed("verify", unit)
    assert checked.returncode == 0, checked.stderr
    assert "ncp.service" not in checked.stderr
    seconds = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert seconds is not None
    assert int(seconds[1]) > Configuration.model_fields["stop_seconds"].default


def test_the_published_unit_exposes_little(unit: Path) -> None:
    reported = analyzed("security", "--offline=true", "--no-pager", unit).stdout
    found = re.search(r"Overall exposure level for ncp.service: ([0-9.]+)", reported)
    assert found is not None, reported
    assert float(found[1]) < HIGHEST_EXPOSURE


def test_a_job_runs_under_what_the_published_unit_takes_away(unit: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0 or not NUMBERS.exists():
        pytest.skip("only root may take so much away, and the numbers of system calls are those of x86-64")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    restricted = [sys.executable, "-m", "tests.support.machine.restricted", str(unit)]
    command = [sys.executable, "-m", "sparse_ncp.app.cli.main", "serve", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*restricted, *command], cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        # The compiled kernels are not in its cache yet.
        wait_for(lambda: b"ready at" in (tmp_path / "log").read_bytes() or process.poll(), 600, "the server")
        assert process.poll() is None, (tmp_path / "log").read_text()
        with http_client(f"http://127.0.0.1:{port}") as caller:
            tensor = upload(caller, planted(20, 20, 20))
            job = finished(caller, submit(caller, tensor["id"], method="hals")["id"])
            assert job["state"] == "succeeded", job
        for part in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            status = Path(f"/proc/{part.pid}/status").read_text()
            for held in ("NoNewPrivs:\t1", "Seccomp:\t2", f"CapBnd:\t{0:016x}"):
                assert held in status
        assert not Path("/var/lib/ncp").exists()
    finally:
        end_tree(process)
    assert process.returncode == 0
