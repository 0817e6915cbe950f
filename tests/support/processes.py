"""Find, freeze and kill the processes that a test has started."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from sparse_ncp.worker.config import Configuration
from tests.support.stack import Server, wait_for

# While the launcher starts Redis again, up to 45 s, it looks after nothing else; and the machine may be busy.
PART_SECONDS = 180.0
STILL = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


def configuration_of(running: Server) -> Configuration:
    return Configuration(data=running.data, redis_url=f"unix://{running.data.absolute()}/redis/redis.sock")


def part(running: Server, name: str) -> psutil.Process:
    """The launcher's child that is this part, once there is one."""

    def look() -> psutil.Process | None:
        if running.process.poll() is not None:
            raise RuntimeError(f"the launcher ended with {running.process.returncode}")
        for child in psutil.Process(running.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # a process that died; as a zombie it hides no other
                if name in [*child.cmdline(), child.name()[:6]]:
                    return child
        return None

    return wait_for(look, PART_SECONDS, name)


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
