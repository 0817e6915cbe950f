"""Fixtures: the Python client on the shared server with a worker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ncp_client import Client
from tests.support.api import Api


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the stored login and the variables of this machine."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NCP_URL", raising=False)
    monkeypatch.delenv("NCP_KEY", raising=False)
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))


@pytest.fixture
def lab(api_with_worker: Api) -> Iterator[Client]:
    with Client(api_with_worker.address) as made:
        yield made
