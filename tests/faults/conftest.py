"""Fixtures of the fault tests."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs import Backend
from tests.support.machine.disk import Disk, small_disk
from tests.support.stack import embedded_redis, worker


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    """Checkpoints follow each other closely, and a lease is short."""
    with embedded_redis(tmp_path, checkpoint_seconds=0.05, lease_seconds=2.0) as configuration:
        yield Backend(configuration)


@pytest.fixture
def running(backend: Backend) -> Iterator["subprocess.Popen[bytes]"]:
    """The worker of that backend."""
    with worker(backend.configuration) as process:
        yield process


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Where `server(tmp_path)` keeps its files."""
    with small_disk(tmp_path / "data") as made:
        yield made
