"""Fixtures: the Python client on the shared server with a worker."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ncp_client import Client, Tensor
from sparse_ncp.worker.operations import study_admission
from tests.support.api import Api, planted


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


@pytest.fixture
def unread_in_halves(lab: Client, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """A tensor without halves of mode 1 that have readings everywhere, as large ones not searched at submission."""
    monkeypatch.setattr(study_admission, "MOST_SEARCHED", 0)
    X = np.array(planted(9, 8, 7))
    X[::2, 4] = np.nan
    return lab.upload(X)
