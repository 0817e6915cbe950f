"""The log of Redis after a power cut on a file system that breaks its promises, and lost records."""

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from sparse_ncp.app.server.embedded_redis import start_redis, url_of
from sparse_ncp.app.server.errors import RedisStartError
from sparse_ncp.app.server.redis_log import FOLDER, MANIFEST, check_manifest, cut, cut_tail, find_damage, whole_bytes
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.processes import stop
from tests.support.api import finished, http_client, planted, submit, upload
from tests.support.stack import ROOT, Server, server

LOG = "appendonly.aof.1.incr.aof"
# Tails that a power cut may leave, none of which Redis starts with.
TAILS = {
    "zeros": bytes(5000),
    "garbage": bytes(range(256)) * 20,
    "a command with zeros inside": b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\n" + bytes(100),
    "a transaction that was never closed": b"*1\r\n$5\r\nMULTI\r\n*2\r\n$4\r\nINCR\r\n$1\r\na\r\n" + bytes(100),
    "half a line": b"*3\r\n$30000000000000000000000000000000000000000\r\n",
}


def ncp(command: str, data: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    called = [sys.executable, "-m", "sparse_ncp.app.cli.main", command, "--data", str(data), *arguments]
    return subprocess.run(called, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def done_job(running: Server) -> str:
    with http_client(running.address) as caller:
        tensor = upload(caller, planted(6, 5, 4), "held")
        return str(finished(caller, submit(caller, tensor["id"])["id"])["id"])


def state_of(running: Server, job: str) -> str:
    with http_client(running.address) as caller:
        return str(caller.get(f"/v1/jobs/{job}").raise_for_status().json()["state"])


def commands() -> list[bytes]:
    """A log: single commands and a transaction, with values that look like commands."""
    parts: list[list[bytes]] = [
        [b"SELECT", b"0"],
        [b"SET", b"a", b"*1\r\n$4\r\nPING\r\n"],
        [b"MULTI"],
        [b"INCR", b"x"],
        [b"INCR", b"y"],
        [b"EXEC"],
        [b"SET", b"b", b""],
        [b"RPUSH", b"list", b"1", b"2"],
    ]
    return [b"*%d\r\n" % len(part) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in part) for part in parts]


def test_a_log_is_whole_up_to_its_last_whole_command_wherever_it_is_cut() -> None:
    """At every byte: the end of the last command before it, and never one inside a transaction."""
    log = b"".join(commands())
    ends = [len(b"".join(commands()[:count])) for count in (0, 1, 2, 6, 7, 8)]
    for length in range(len(log) + 1):
        expected = max(end for end in ends if end <= length)
        for tail in (b"", TAILS["zeros"], *(TAILS.values() if length in ends else ())):
            assert whole_bytes(io.BytesIO(log[:length] + tail))[0] == expected


def test_redis_starts_with_exactly_what_was_whole(tmp_path: Path) -> None:
    """Cut at every command and in the middle of each, followed by zeros: keys are those of complete commands."""
    configuration, folder = Configuration(), tmp_path / "redis"
    stop(start_redis(configuration, tmp_path / "sock", folder), 10)
    log, made = folder / FOLDER / LOG, commands()
    for count in range(len(made) + 1):
        for half in (0, 5):
            kept = b"".join(made[:count]) + b"".join(made[count : count + 1])[:half]
            log.write_bytes(kept + bytes(64))
            running = start_redis(configuration, tmp_path / "sock", folder)
            try:
                with redis.Redis.from_url(url_of(tmp_path / "sock")) as client:
                    found = {key.decode() for key in client.scan_iter()}
            finally:
                stop(running, 10)
            expected = ({"a"} if count >= 2 else set()) | ({"x", "y"} if count >= 6 else set())
            expected |= ({"b"} if count >= 7 else set()) | ({"list"} if count >= 8 else set())
            assert found == expected
            shutil.rmtree(folder / "damaged", ignore_errors=True)  # half a line and zeros Redis cuts off by itself


@pytest.mark.parametrize("tail", TAILS)
def test_a_damaged_tail_is_reported_and_a_copy_is_kept(tmp_path: Path, tail: str) -> None:
    folder = tmp_path / "redis"
    log = folder / FOLDER / LOG
    log.parent.mkdir(parents=True)
    whole = b"".join(commands())
    log.write_bytes(whole + TAILS[tail])
    (log.parent / MANIFEST).write_text(f"file {LOG} seq 1 type i\n")
    message = cut_tail(folder)
    assert message is not None
    assert f"{LOG} is damaged at byte {len(whole)}" in message
    assert f"{len(TAILS[tail])} bytes follow, no whole command in them" in message
    (copy,) = (folder / "damaged").glob(f"*/{LOG}")
    assert str(copy.parent) in message
    assert (log.read_bytes(), copy.read_bytes()) == (whole, whole + TAILS[tail])
    assert cut_tail(folder) is None


def test_a_server_with_a_damaged_tail_starts_says_so_and_has_lost_nothing(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        job = done_job(running)
    log = tmp_path / "data" / "redis" / FOLDER / LOG
    whole = log.read_bytes()
    log.write_bytes(whole + TAILS["a transaction that was never closed"])
    with server(tmp_path) as running:
        assert state_of(running, job) == "succeeded"
        assert f"damaged at byte {len(whole)}" in running.log.read_text()


def test_a_log_that_is_damaged_in_the_middle_is_cut_by_the_operator_alone(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        done_job(running)
    log = tmp_path / "data" / "redis" / FOLDER / LOG
    content = bytearray(log.read_bytes())
    place = len(content) // 2
    content[place : place + 300] = bytes(300)
    log.write_bytes(content)
    refused = ncp("serve", tmp_path / "data", "--port", "0")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "whole commands among them" in refused.stderr
    assert f"ncp repair --data {tmp_path / 'data'}" in refused.stderr
    assert log.read_bytes() == content
    mended = ncp("repair", tmp_path / "data")
    assert mended.returncode == 0, mended.stderr
    assert "it was cut off there" in mended.stdout
    assert find_damage(tmp_path / "data" / "redis") is None
    with server(tmp_path) as running, http_client(running.address) as caller:
        assert caller.get("/v1/tensors").json()["items"][0]["name"] == "held"
        again = ncp("repair", tmp_path / "data")
        assert (again.returncode, "another server uses" in again.stderr) == (2, True)
    assert "is not damaged" in ncp("repair", tmp_path / "data").stdout


def test_a_lost_list_of_files_is_refused_and_can_be_repaired(tmp_path: Path) -> None:
    """Redis would begin an empty log over the full one."""
    with server(tmp_path) as running:
        job = done_job(running)
    manifest = tmp_path / "data" / "redis" / FOLDER / MANIFEST
    listed = manifest.read_bytes()
    for content in (b"", bytes(88)):
        manifest.write_bytes(content)
        with pytest.raises(RedisStartError, match="ncp repair"):
            check_manifest(tmp_path / "data" / "redis")
    manifest.unlink()
    refused = ncp("serve", tmp_path / "data", "--port", "0")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert f"ncp repair --data {tmp_path / 'data'}" in refused.stderr
    assert "has been rebuilt" in ncp("repair", tmp_path / "data").stdout
    assert manifest.read_bytes() == listed
    with server(tmp_path) as running:
        assert state_of(running, job) == "succeeded"


def test_a_first_start_that_was_cut_short_is_no_damage(tmp_path: Path) -> None:
    """The power failed after the first file of the log was created, and before its manifest."""
    folder = tmp_path / "redis"
    stop(start_redis(Configuration(), tmp_path / "sock", folder), 10)
    for name in (LOG, MANIFEST):
        (folder / FOLDER / name).unlink()
    stop(start_redis(Configuration(), tmp_path / "sock", folder), 10)
    assert (folder / FOLDER / MANIFEST).exists()


def test_files_without_records_are_refused_with_the_ways_to_go_on(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        done_job(running)
    data = tmp_path / "data"
    shutil.move(data / "redis", tmp_path / "backup")
    for _ in range(2):  # the empty Redis of the first try is no excuse for the second
        refused = ncp("serve", data, "--port", "0")
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
        assert all(word in refused.stderr for word in ("no records", "backup", "NCP_REDIS_URL", "start afresh"))
    for name in ("tensors", "jobs"):
        shutil.move(data / name, tmp_path / name)
    with server(tmp_path) as running, http_client(running.address) as caller:
        assert caller.get("/v1/jobs").json()["items"] == []


def test_a_log_of_several_files_is_cut_at_the_first_damage(tmp_path: Path) -> None:
    """As while Redis compacts it: what comes after the damage was written on the base of what is lost."""
    folder = tmp_path / "redis"
    log = folder / FOLDER
    log.mkdir(parents=True)
    made = commands()
    for number, content in ((1, made), (2, made), (3, made), (4, [])):
        (log / f"appendonly.aof.{number}.incr.aof").write_bytes(b"".join(content))
    listed = [f"file appendonly.aof.{number}.incr.aof seq {number} type i\n" for number in (1, 2, 3, 4)]
    (log / MANIFEST).write_text("".join(listed))
    assert find_damage(folder) is None
    (log / "appendonly.aof.2.incr.aof").write_bytes(made[0] + b"\0" + b"".join(made))
    damage = find_damage(folder)
    assert damage is not None
    assert (damage.whole_bytes, damage.commands_behind) == (len(made[0]), 2 * len(made))
    cut(folder, damage)
    assert (log / MANIFEST).read_text() == "".join(listed[:2])
    assert not (log / "appendonly.aof.3.incr.aof").exists()
    assert len(list((folder / "damaged").glob("*/*"))) == 4
    (log / "appendonly.aof.1.incr.aof").unlink()
    with pytest.raises(RedisStartError, match="restore a backup"):
        find_damage(folder)
