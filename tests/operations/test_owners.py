"""`ncp owners` in the terminal: the operator sees shares, sets weights, and pauses owners."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.api import http_client, planted, submit, upload
from tests.support.stack import ROOT, server, wait_for

ENDLESS = {"stop": {"max_iterations": 10**6, "tolerance": 0}}


def ncp(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sparse_ncp.app.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_an_owner_is_weighed_paused_and_resumed(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1, turn_seconds=1) as running, http_client(running.address) as caller:
        tensor = upload(caller, planted(30, 30, 30))
        job = submit(caller, tensor["id"], **ENDLESS)["id"]

        def now() -> dict[str, object]:
            found: dict[str, object] = caller.get(f"/v1/jobs/{job}").json()
            return found

        wait_for(lambda: now()["progress"], what="progress")
        assert ncp("owners", "weight", "local", 2.5, "--data", running.data).returncode == 0
        paused = ncp("owners", "pause", "local", "--reason", "the lamp is changed", "--data", running.data)
        assert paused.returncode == 0, paused.stderr
        found = wait_for(lambda: here if (here := now())["paused"] else None, what="the job to be handed back")
        assert found["state"] == "queued"
        assert found["paused"]["message"] == "paused by the operator: the lamp is changed"  # type: ignore[index]
        listed = ncp("owners", "list", "--data", running.data).stdout
        line = r"^local +0 +1 +2\.5 +100% +\d+ s  paused by the operator: the lamp is changed$"
        assert re.search(line, listed, re.MULTILINE), listed
        assert "paused by the operator" in ncp("status", "--data", running.data).stdout
        assert ncp("owners", "resume", "local", "--data", running.data).returncode == 0
        wait_for(lambda: now()["state"] == "running", what="the job to go on")
        assert now()["paused"] is None
        caller.post(f"/v1/jobs/{job}/cancel")


def test_without_a_server_it_says_so(tmp_path: Path) -> None:
    found = ncp("owners", "list", "--data", tmp_path / "nothing")
    assert found.returncode == 1
    assert found.stderr.startswith("ncp: no server runs on the folder")
    assert found.stderr.count("\n") == 1


def test_a_weight_outside_its_range_is_refused(tmp_path: Path) -> None:
    found = ncp("owners", "weight", "ann", 0, "--data", tmp_path)
    assert found.returncode == 2
    assert "0.01" in found.stderr
