"""What is done to the processes a test has started, by their ids."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from tests.stack import wait_for
from worker.configuration import Configuration

STILL = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


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
