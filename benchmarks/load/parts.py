"""Parts of the server that a measurement needs, as real processes."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.processes import start
from tests.support.stack import embedded_redis, end_tree, wait_for


class Front(NamedTuple):
    """An API and its Redis, without a worker, so that queued jobs stay queued."""

    address: str
    host: str
    port: int
    process: psutil.Process
    configuration: Configuration


@contextmanager
def front(**settings: object) -> Iterator[Front]:
    with tempfile.TemporaryDirectory(prefix="ncp-load-") as folder:
        kept = {"log_level": "warning", "min_free_bytes": 0, "port": 0, **settings}
        with embedded_redis(Path(folder) / "data", **kept) as configuration, _api(configuration) as process:
            port = _port_of(process)
            yield Front(f"http://127.0.0.1:{port}", "127.0.0.1", port, psutil.Process(process.pid), configuration)


@contextmanager
def _api(configuration: Configuration) -> "Iterator[subprocess.Popen[bytes]]":
    process = start([sys.executable, "-m", "sparse_ncp.app.cli.main", "api"], configuration.environment())
    try:
        yield process
    finally:
        end_tree(process)


def _port_of(process: "subprocess.Popen[bytes]") -> int:
    """Wait until the API is listening, and return its port."""

    def look() -> int | None:
        listening = [one for one in psutil.Process(process.pid).net_connections("tcp") if one.status == "LISTEN"]
        return listening[0].laddr.port if listening else None

    return wait_for(look, what="the API to listen")


def processor() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else "an unknown processor"
