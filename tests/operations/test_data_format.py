"""The data format: an older release does not start on data that it would misread."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ncp_client.cli.exit_codes import ExitCode
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.data_format import FORMAT, folder_format, mark_folder, mark_redis, plan_of_upgrade
from sparse_ncp.worker.errors import LaterFormat
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from tests.support.stack import ROOT, embedded_redis, server

LATER = {"format": FORMAT + 1, "release": "9.9.9"}


def start(command: str, configuration: Configuration) -> "subprocess.CompletedProcess[str]":
    arguments = [sys.executable, "-m", "sparse_ncp.app.cli.main", command]
    environment = {**configuration.environment(), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def refuses(started: "subprocess.CompletedProcess[str]") -> None:
    assert started.returncode == ExitCode.REFUSED
    assert started.stderr.count("\n") == 1
    for part in ("format 2", "9.9.9 or newer", version("sparse-ncp"), "backup"):
        assert part in started.stderr


@pytest.mark.parametrize("command", ["serve", "api", "worker"])
def test_a_folder_of_a_later_format_is_refused_before_anything_is_written(command: str, tmp_path: Path) -> None:
    (tmp_path / "format").write_text(json.dumps(LATER))
    refuses(start(command, Configuration(data=tmp_path, port=0, redis_url="redis://127.0.0.1:1/0")))
    assert {path.name for path in tmp_path.iterdir()} <= {"format", "lock"}


@pytest.mark.parametrize("command", ["serve", "api", "worker"])
def test_a_redis_of_a_later_format_is_refused(command: str, tmp_path: Path) -> None:
    with embedded_redis(tmp_path / "redis") as made:
        with connect(made) as client:
            client.hset(keys.FORMAT, mapping=LATER)
        refuses(start(command, made.model_copy(update={"data": tmp_path / "data", "port": 0})))


def test_a_folder_from_before_there_was_a_number_is_used_and_marked(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1) as running:
        found = folder_format(running.data)
        assert found == (FORMAT, version("sparse-ncp"))
        assert "uses it as it is" in plan_of_upgrade(running.data)


def test_a_later_release_of_the_same_format_runs_beside_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded_redis(tmp_path) as made:
        mark_folder(tmp_path)
        mark_redis(made)
        marked = folder_format(tmp_path)
        monkeypatch.setattr("sparse_ncp.worker.data_format.version", lambda _: "0.1.1")
        mark_folder(tmp_path)
        mark_redis(made)
        assert folder_format(tmp_path) == marked
        monkeypatch.setattr("sparse_ncp.worker.data_format.FORMAT", FORMAT + 1)
        assert "raises it to 2" in plan_of_upgrade(tmp_path)
        mark_folder(tmp_path)
        mark_redis(made)
        monkeypatch.undo()
        with pytest.raises(LaterFormat):
            mark_folder(tmp_path)
        with pytest.raises(LaterFormat):
            mark_redis(made)
