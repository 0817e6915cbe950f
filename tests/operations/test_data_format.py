"""The data format and the version of Redis: a release does not start on what it would misread or cannot use."""

import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import pytest

from ncp_client.cli.exit_codes import ExitCode
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.data_format import FORMAT, check_version, folder_format, mark_folder, mark_redis, plan_of_upgrade
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


@pytest.mark.parametrize("command", ["serve", "api", "worker", "gc", "repair"])
def test_a_folder_of_a_later_format_is_refused_before_anything_is_written(command: str, tmp_path: Path) -> None:
    (tmp_path / "format").write_text(json.dumps(LATER))
    (tmp_path / "redis").mkdir()
    refuses(start(command, Configuration(data=tmp_path, port=0, redis_url="redis://127.0.0.1:1/0")))
    assert {path.name for path in tmp_path.iterdir()} <= {"format", "lock", "redis"}
    assert not list((tmp_path / "redis").iterdir())


@pytest.mark.parametrize("command", ["serve", "api", "worker", "gc"])
def test_a_redis_of_a_later_format_is_refused(command: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
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


class OldRedis(socketserver.StreamRequestHandler):
    """A Redis of release 6.2 with no data."""

    info = b"# Server\r\nredis_version:6.2.14\r\n"
    answers: ClassVar = {
        b"HELLO": b"%1\r\n+proto\r\n:3\r\n",
        b"HGETALL": b"%0\r\n",
        b"INFO": b"$%d\r\n%s\r\n" % (len(info), info),
    }

    def handle(self) -> None:
        while header := self.rfile.readline():
            words = []
            for _ in range(int(header[1:])):
                length = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(length + 2)[:-2])
            self.wfile.write(self.answers.get(words[0].upper(), b"-ERR unknown command\r\n"))


class OlderRedis(OldRedis):
    """A Redis of release 5, which has no command HELLO."""

    answers: ClassVar = {}


@contextmanager
def answering(handler: type[OldRedis]) -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as made:
        made.daemon_threads = True
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{made.server_address[1]}/0"
        finally:
            made.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("command", "handler", "version"),
    [
        *((command, OldRedis, "6.2.14") for command in ("serve", "api", "worker", "gc")),
        ("api", OlderRedis, "5 or older"),
    ],
)
def test_a_redis_that_is_too_old_is_refused_in_one_line(
    command: str, handler: type[OldRedis], version: str, tmp_path: Path
) -> None:
    with answering(handler) as address:
        refused = start(command, Configuration(data=tmp_path, port=0, redis_url=address))
    assert refused.returncode == ExitCode.REFUSED, refused.stderr
    assert refused.stderr.count("\n") == 1
    assert f"version {version}, and sparse-ncp needs Redis 7 or newer, or Valkey" in refused.stderr


@pytest.mark.parametrize(
    "info",
    [
        {"redis_version": "7.0.0"},
        {"redis_version": "10.1"},
        {"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.0.0"},
        {},
    ],
)
def test_a_redis_that_is_new_enough_or_hides_its_version_is_used(info: dict[str, str]) -> None:
    check_version(info)
