"""What most of these tests begin with."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disk import Disk, small_disk
from tests.stack import embedded_redis, worker
from tests.worker.running import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Checkpoints follow each other closely, and a lease is short."""
    with embedded_redis(tmp_path, checkpoint_seconds=0.05, lease_seconds=2.0) as configuration:
        yield Lab(configuration)


@pytest.fixture
def running(lab: Lab) -> Iterator["subprocess.Popen[bytes]"]:
    """The worker of that lab."""
    with worker(lab.configuration) as process:
        yield process


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Where `server(tmp_path)` keeps its files."""
    with small_disk(tmp_path / "data") as made:
        yield made
