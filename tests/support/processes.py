"""What is done to the processes a test has started: find, freeze, kill."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from tests.support.stack import Server, wait_for
from worker.config import Configuration

STILL = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


def configuration_of(running: Server) -> Configuration:
    return Configuration(data=running.data, redis_url=f"unix://{running.data.absolute()}/redis/redis.sock")


def part(running: Server, name: str) -> psutil.Process:
    """The launcher's child that is this part."""

    def look() -> psutil.Process | None:
        try:
            children = psutil.Process(running.process.pid).children()
            return next((child for child in children if name in [*child.cmdline(), child.name()[:6]]), None)
        except psutil.NoSuchProcess:
            return None  # a child that has just died, a zombie among them

    return wait_for(look, what=name)


def redis_process(configuration: Configuration) -> psutil.Process:
    """The Redis this test has started, found by its socket."""
    socket = str(configuration.redis_url).removeprefix("unix://")
    return next(child for child in psutil.Process().children() if socket in " ".join(child.cmdline()))


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it, the children first."""
    top = psutil.Process(pid)
    return [*reversed(top.children(recursive=True)), top]


@contextmanager
def frozen(processes: list[psutil.Process]) -> Iterator[None]:
    """Stopped (SIGSTOP) inside the context, going on afterwards. One that ended just before stays a zombie."""
    try:
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
        for process in processes:
            wait_for(lambda: process.status() in STILL, what="the process to stop")  # noqa: B023
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)


def kill(process: psutil.Process) -> None:
    """At once (-9); it may be dead already."""
    with suppress(psutil.NoSuchProcess):
        process.kill()
