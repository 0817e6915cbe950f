"""The real stack for tests: Redis, a Celery worker, or the whole server, on free ports and in temporary folders.

    with embedded_redis(folder) as configuration: ...
    with worker(configuration): ...
    with server(folder) as address: ...

Each waits until it is ready, and ends what it started.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import psutil

from sparse_ncp.app.server.embedded_redis import find_server, start_redis, url_of
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.processes import die_with_parent, stop
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect

Found = TypeVar("Found")
Restart: TypeAlias = Callable[..., None]
READY_SECONDS = 60.0
# A launcher gives up by itself, and says why, sooner than this.
STARTED_SECONDS = 240.0
ROOT = Path(__file__).parents[2]
PASSWORD = "p4ss/w0rd@of-redis"
ENCODED_PASSWORD = quote(PASSWORD, safe="")


def wait_for(look: Callable[[], Found | None], seconds: float = READY_SECONDS, what: str = "") -> Found:
    """The first true answer; an error when the deadline passes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise TimeoutError(f"waited {seconds} s for {what or look}")


@contextmanager
def embedded_redis(folder: Path, **settings: Any) -> Iterator[Configuration]:
    """A private Redis with its files in `folder`; gives the configuration to reach it."""
    with restartable_redis(folder, **settings) as (configuration, _):
        yield configuration


@contextmanager
def restartable_redis(folder: Path, **settings: Any) -> Iterator[tuple[Configuration, Restart]]:
    """Yield a Redis, and a function that kills it (-9), calls `meanwhile`, and starts it again."""
    plain = Configuration(data=folder, **settings)
    socket = Path(tempfile.mkdtemp(prefix="ncp-test-")) / "redis.sock"
    running = [start_redis(plain, socket, folder / "redis")]

    def restart(meanwhile: Callable[[], object] = lambda: None) -> None:
        killed = running.pop()
        killed.kill()
        killed.wait()
        meanwhile()
        running.append(start_redis(plain, socket, folder / "redis"))

    try:
        yield plain.model_copy(update={"redis_url": url_of(socket)}), restart
    finally:
        for process in running:
            stop(process, 10)
        socket.unlink(missing_ok=True)
        socket.parent.rmdir()


@contextmanager
def worker(configuration: Configuration, *module: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A Celery worker, live in the records when the context begins. Another `module` may start one with a fault."""
    process = _start(
        [sys.executable, "-m", *(module or ("sparse_ncp.app.cli.main", "worker"))], configuration.environment()
    )
    name = f"ncp-{process.pid}@{gethostname()}"
    try:
        with connect(configuration) as client:
            wait_for(
                lambda: client.zscore(keys.WORKERS, name) or process.poll() is not None, what="the worker to be live"
            )
        assert process.poll() is None, "the worker ended at once"
        yield process
    finally:
        end_tree(process)


@dataclass(frozen=True)
class Server:
    """A running `ncp serve`."""

    address: str
    process: "subprocess.Popen[bytes]"
    log: Path
    data: Path


@contextmanager
def server(folder: Path, *arguments: str, **settings: Any) -> Iterator[Server]:
    """The whole server on a free port, ready when the context begins. Its messages go to `folder/log`."""
    configuration = Configuration(**{"port": 0, "data": folder / "data", **settings})
    log = folder / "log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "sparse_ncp.app.cli.main", "serve", *arguments]
        process = _start(command, configuration.environment(), output)
    try:
        yield Server(_address(process, log), process, log, folder / "data")
    finally:
        end_tree(process)


def descendants(pid: int) -> list[psutil.Process]:
    """Every process below this one, now."""
    return psutil.Process(pid).children(recursive=True) if psutil.pid_exists(pid) else []


def end_tree(process: "subprocess.Popen[bytes]", seconds: float = 20) -> None:
    """Ask a process to end, and end whatever it left."""
    below = descendants(process.pid)
    stop(process, seconds)
    for left in psutil.wait_procs(below, timeout=5)[1]:
        left.kill()


def _start(command: list[str], environment: dict[str, str], output: Any = None) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - tests start processes from their main thread
    )


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    def look() -> str | None:
        found = re.search(r"ready at (http://\S+)", log.read_text(errors="replace"))
        if found is None and process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:\n{log.read_text(errors='replace')}")
        return found[1] if found else None

    return wait_for(look, STARTED_SECONDS, "the server's address")


def interrupt(process: "subprocess.Popen[bytes]") -> None:
    """As Ctrl-C does."""
    process.send_signal(signal.SIGINT)


@contextmanager
def locked_redis(folder: Path, unix: bool = False) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """A Redis that asks for a password, on a port or a unix socket; gives its address with the password."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if unix:
        path = folder / "redis socket"
        listen, address = ["--port", "0", "--unixsocket", str(path)], f"unix://:{ENCODED_PASSWORD}@{quote(str(path))}"
    else:
        listen = ["--bind", "127.0.0.1", "--port", str(port)]
        address = f"redis://:{ENCODED_PASSWORD}@127.0.0.1:{port}/0"
    command = [str(find_server(Configuration())), *listen, "--dir", str(folder), "--requirepass", PASSWORD]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction", "--save", ""]
    process = subprocess.Popen([*command, "--logfile", "redis.log"], cwd=folder)
    try:
        log = folder / "redis.log"
        wait_for(lambda: log.exists() and "Ready to accept" in log.read_text(), 10, "Redis")
        yield address, process
    finally:
        stop(process, 10)
