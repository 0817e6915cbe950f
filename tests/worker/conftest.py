from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import embedded_redis
from tests.worker.lab import put, random_tensor
from worker.configuration import Configuration
from worker.contract import TensorRecord
from worker.link import connect
from worker.records import Records
from worker.store import Store


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    with embedded_redis(tmp_path_factory.mktemp("redis")) as configuration:
        yield configuration


@pytest.fixture
def configuration(shared_redis: Configuration, tmp_path: Path) -> Configuration:
    with connect(shared_redis) as client:
        client.flushall()
    return shared_redis.model_copy(update={"data": tmp_path})


@pytest.fixture
def records(configuration: Configuration) -> Records:
    return Records.of(configuration)


@pytest.fixture
def store(configuration: Configuration) -> Store:
    return Store(configuration.data)


@pytest.fixture
def tensor(records: Records, store: Store) -> TensorRecord:
    return put(records, store, random_tensor(4, 5, 6))
