"""One browser and one whole server for the tests of the page."""

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from tests.support.api import http_client
from tests.support.browser import Visitor, chromium, visit
from tests.support.stack import Server, server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that is open to users of this machine, with frequent checkpoints and keep-alive comments."""
    folder = tmp_path_factory.mktemp("page")
    with server(folder, checkpoint_seconds=0.2, keep_alive_seconds=0.5, min_free_bytes=1) as running:
        yield running


@pytest.fixture
def lab(lab_server: Server) -> Iterator[httpx.Client]:
    """Yield a client of the page's server, without a browser."""
    with http_client(lab_server.address) as made:
        yield made


@pytest.fixture
def visitor(browser: Browser, lab_server: Server) -> Iterator[Visitor]:
    with visit(browser, lab_server.address) as made:
        yield made
