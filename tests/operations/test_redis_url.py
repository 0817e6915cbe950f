"""NCP_REDIS_URL means the same Redis to the records and to Celery."""

from pathlib import Path

import pytest
import redis

from sparse_ncp.worker.broker import broker_url, pending_wakeups, wake_worker
from sparse_ncp.worker.config import Configuration
from tests.support.stack import locked_redis, wait_for, worker


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("redis://:secret@host:6379/2", "redis://:secret@host:6379/2"),
        ("rediss://host:6379/0", "rediss://host:6379/0"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3"),
        ("unix://:s%40c@/run/redis.sock?db=1", "redis+socket://:s%40c@/run/redis.sock?virtual_host=1"),
        ("unix://lab:s%2Fc@/run/my%20redis", "redis+socket://lab:s%2Fc@/run/my%20redis?virtual_host=0"),
        ("unix:///run/redis.sock?password=s%40c", "redis+socket://:s%40c@/run/redis.sock?virtual_host=0"),
    ],
)
def test_celery_is_given_user_password_and_database(url: str, broker: str) -> None:
    assert broker_url(url) == broker


def test_a_unix_socket_with_a_password_and_a_database_serves_both(tmp_path: Path) -> None:
    with locked_redis(tmp_path / "r", unix=True) as (address, _):
        configuration = Configuration(data=tmp_path / "data", redis_url=f"{address}?db=1")
        wake_worker(configuration)
        assert pending_wakeups(configuration) == 1
        with worker(configuration):
            wait_for(lambda: pending_wakeups(configuration) == 0, 20, "the worker to take the wake-up message")
        with redis.Redis.from_url(address) as other_database:
            assert other_database.dbsize() == 0
