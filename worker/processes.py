"""Start and stop child processes, so that none is left behind."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
