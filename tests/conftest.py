"""Settings of the test tools; one Redis, one worker and one API for all tests that share them."""

from collections import Counter
from collections.abc import Iterator, Mapping

import httpx
import pytest
from hypothesis import settings

from sparse_ncp.worker.config import Configuration
from tests.support.api import Api, http_client, running_api
from tests.support.stack import embedded_redis, worker

MEGABYTE = 1 << 20
# A module that imports one of these starts processes.
STARTS_PROCESSES = ("subprocess", "tests.support.browser", "tests.support.stack")
QUICK_VARIANTS = 2


# The machine may be busy: no test fails for having been slow. The examples are the same in every run, so that a run
# says something about the code that ran; `make fuzz` looks for new ones (--hypothesis-profile=explore).
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=5)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="unit tests only, a few variants of each")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that start a process; with `--quick` leave those out, and all but a few variants of the others."""
    for item in items:
        if isinstance(item, pytest.Function) and any(map(_starts_processes, _namespaces(item))):
            item.add_marker("system")
    if config.getoption("--quick"):
        variants = Counter[str]()
        kept: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            function = item.nodeid.partition("[")[0]
            is_kept = not item.get_closest_marker("system") and variants[function] < QUICK_VARIANTS
            variants[function] += is_kept
            (kept if is_kept else left_out).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _namespaces(item: pytest.Function) -> Iterator[Mapping[str, object]]:
    """Yield the module globals of a test and of each of its fixtures."""
    yield vars(item.module)
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            yield getattr(definition.func, "__globals__", {})


def _starts_processes(namespace: Mapping[str, object]) -> bool:
    modules = {getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in namespace.values()}
    return not modules.isdisjoint(STARTS_PROCESSES)


@pytest.fixture(scope="session")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    """Redis without a worker: what is queued stays queued."""
    folder = tmp_path_factory.mktemp("front")
    with embedded_redis(
        folder, max_tensor_bytes=MEGABYTE, max_job_memory_bytes=64 * MEGABYTE, keep_alive_seconds=0.5, min_free_bytes=1
    ) as made:
        yield made


@pytest.fixture(scope="session")
def api(configuration: Configuration) -> Iterator[Api]:
    with running_api(configuration) as made:
        yield made


@pytest.fixture
def client(api: Api) -> Iterator[httpx.Client]:
    """A caller of a server without a worker."""
    with http_client(api.address) as made:
        yield made


@pytest.fixture
def other_client(api: Api) -> Iterator[httpx.Client]:
    """Another owner on the same server."""
    with http_client(api.address, "another owner") as made:
        yield made


@pytest.fixture(scope="session")
def api_with_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with a worker."""
    folder = tmp_path_factory.mktemp("lab")
    with (
        embedded_redis(folder, checkpoint_seconds=0.1, keep_alive_seconds=0.5, min_free_bytes=1) as made,
        worker(made),
        running_api(made) as running,
    ):
        yield running


@pytest.fixture
def client_with_worker(api_with_worker: Api) -> Iterator[httpx.Client]:
    """A caller of a server that works."""
    with http_client(api_with_worker.address) as made:
        yield made
