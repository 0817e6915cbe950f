"""The private Redis: durable, private, found in the right order."""

import stat
from pathlib import Path

import pytest

from tests.stack import embedded_redis, restartable_redis
from tests.worker.lab import put, random_tensor, request
from worker.configuration import Configuration
from worker.embedded_redis import SOCKET_PATH_LIMIT, NoServer, find_server, socket_path, start_redis
from worker.link import connect
from worker.records import Records
from worker.store import Store


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    with restartable_redis(tmp_path) as (configuration, restart):
        records = Records.of(configuration)
        tensor = put(records, Store(tmp_path), random_tensor(3, 3))
        jobs = [records.submit("local", request(tensor), f"key {n}")[0] for n in range(20)]
        claim = records.claim("worker")
        restart()
        assert claim is not None
        assert [records.job("local", job.id).id for job in jobs] == [job.id for job in jobs]
        assert records.renew(claim) == "kept"
        assert records.submit("local", request(tensor), "key 3")[1]


def test_nobody_else_can_open_the_socket(tmp_path: Path) -> None:
    with restartable_redis(tmp_path) as (configuration, _):
        socket = Path(str(configuration.redis_url).removeprefix("unix://"))
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "redis").stat().st_mode) == 0o700


def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    socket = socket_path(deep)
    assert len(str(socket)) <= SOCKET_PATH_LIMIT
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    socket.parent.rmdir()
    assert socket_path(Path("/short")) == Path("/short/redis.sock")


def test_a_configured_server_wins_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    chosen = Configuration(redis_server=tmp_path / "nothing", data=tmp_path)
    assert find_server(chosen) == tmp_path / "nothing"
    with pytest.raises(NoServer, match="does not start"):
        start_redis(chosen, tmp_path / "redis.sock", tmp_path / "redis")
    assert find_server(Configuration()).name == "valkey-server"


@pytest.mark.parametrize("name", ["with space", "d#4", "d?5", "d%41", "dé"])
def test_any_folder_name_will_do(tmp_path: Path, name: str) -> None:
    with embedded_redis(tmp_path / name) as configuration, connect(configuration) as client:
        assert client.ping()
