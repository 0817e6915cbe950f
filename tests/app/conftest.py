"""One Redis, one worker and one API for all tests of this folder."""

from collections.abc import Iterator

import httpx
import pytest

from tests.app.api import Api, api, client
from tests.stack import embedded_redis, worker
from worker.configuration import Configuration

MEGABYTE = 1 << 20


@pytest.fixture(scope="session")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    """Redis without a worker: what is queued stays queued."""
    folder = tmp_path_factory.mktemp("front")
    with embedded_redis(
        folder, max_tensor_bytes=MEGABYTE, max_job_memory_bytes=64 * MEGABYTE, keep_alive_seconds=0.5, min_free_bytes=1
    ) as made:
        yield made


@pytest.fixture(scope="session")
def idle(configuration: Configuration) -> Iterator[Api]:
    with api(configuration) as made:
        yield made


@pytest.fixture
def front(idle: Api) -> Iterator[httpx.Client]:
    """A caller of a server without a worker."""
    with client(idle.address) as made:
        yield made


@pytest.fixture
def stranger(idle: Api) -> Iterator[httpx.Client]:
    """Another owner on the same server."""
    with client(idle.address, "somebody else") as made:
        yield made


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with a worker."""
    folder = tmp_path_factory.mktemp("lab")
    with (
        embedded_redis(folder, checkpoint_seconds=0.1, keep_alive_seconds=0.5, min_free_bytes=1) as made,
        worker(made),
        api(made) as running,
    ):
        yield running


@pytest.fixture
def lab(busy: Api) -> Iterator[httpx.Client]:
    """A caller of a server that works."""
    with client(busy.address) as made:
        yield made
