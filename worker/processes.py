"""Start and stop child processes, and make sure that none is left behind."""

import contextlib
import ctypes
import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

SET_PARENT_DEATH_SIGNAL = 1


# Looked up once: between fork and exec nothing may be loaded.
PRCTL: Any = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux)."""
    if PRCTL is not None:
        PRCTL(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call above
        os._exit(1)


def limit_memory(allowed: int, oom_score: int) -> None:
    """Limit private memory (RLIMIT_DATA), and make this process the first to be killed if the machine runs out of it.

    What was inherited from the parent does not count, nor does a mapped tensor: the kernel may drop its pages.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
        inherited = int(line.split()[1]) << 10
    else:
        inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    soft = inherited + allowed
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        if int(score.read_text()) < oom_score:  # lowering the score is not allowed without privileges
            score.write_text(str(oom_score))


class StartSignal:
    """A flag that child processes inherit as a pipe, and that is set when the pipe is closed."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def set(self) -> None:
        """Let all children start."""
        os.close(self._writer)


def wait_for_start(reader: int) -> None:
    """Wait until the `StartSignal` with this reader is set."""
    os.read(reader, 1)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection while modules are loaded, which saves a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # loaded modules stay: do not scan them later, and do not make children copy their pages
        gc.enable()


def start(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, keep: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Start a child process in its own session, so that Ctrl-C only reaches the parent. It dies with the parent."""
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
