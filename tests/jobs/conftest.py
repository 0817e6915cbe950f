"""One Redis for all tests of this folder, emptied before each; a store per test; the operations on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import TensorRecord
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.tensors import TensorOperations
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.store.local import LocalStore
from tests.support.jobs import put, random_tensor
from tests.support.stack import embedded_redis


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
def records(configuration: Configuration) -> ExecutionRecords:
    return ExecutionRecords.of(configuration)


@pytest.fixture
def store(configuration: Configuration) -> LocalStore:
    return LocalStore(configuration.data)


@pytest.fixture
def jobs(records: ExecutionRecords, store: LocalStore, configuration: Configuration) -> JobOperations:
    return JobOperations(records, store, configuration)


@pytest.fixture
def tensors(records: ExecutionRecords, store: LocalStore) -> TensorOperations:
    return TensorOperations(records, store)


@pytest.fixture
def tensor(records: ExecutionRecords, store: LocalStore) -> TensorRecord:
    return put(records, store, random_tensor(4, 5, 6))
