"""Start and stop child processes, so that none is left behind."""

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

SET_PARENT_DEATH_SIGNAL = 1


def _prctl() -> Any:
    return ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


# Looked up once: between fork and exec nothing may be loaded.
PRCTL = _prctl()


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux)."""
    if PRCTL is not None:
        PRCTL(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(1)


class StartSignal:
    """A flag that child processes inherit: a pipe, whose end they read once it is set. They die with its owner."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def set(self) -> None:
        os.close(self._writer)


def wait_for_start(reader: int) -> None:
    """Return once the `StartSignal` with this reader is set."""
    os.read(reader, 1)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Load modules. Hardly anything of theirs becomes garbage, and searching them for it takes a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # what is loaded stays: it is not searched later either, and no child copies its pages for that
        gc.enable()


def start(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, keep: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Start a child in a session of its own, so that Ctrl-C reaches only the parent; it dies with the parent."""
    return subprocess.Popen(
        arguments,
        env=None if environment is None else {**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=keep,
        preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - one system call, looked up beforehand
    )


def stop(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Terminate a process; kill it if it has not ended after `seconds`."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
