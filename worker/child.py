"""One fresh process per job: it can be limited, and killed without harm.

Forked, it shares the parent's loaded libraries and starts in milliseconds; a new interpreter would need over a second.
"""

import logging
import math
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from worker.claim_records import Standing
from worker.configuration import Configuration
from worker.contract import Claim
from worker.errors import Unavailable
from worker.logs import Subject, concern_process
from worker.process import die_with_parent
from worker.run import run_job
from worker.stopping import Stopping

# What the threads of a job map for themselves: a stack each, and the work space of its BLAS.
BYTES_PER_THREAD = 96 << 20

log = logging.getLogger("ncp.job")


def run_apart(
    claim: Claim, configuration: Configuration, stopping: Stopping, look: Callable[[], Standing]
) -> str | None:
    """Run one attempt in a process of its own. None if it accounted for itself, else how it died.

    `look` says how the claim stands: a process that does not heed its loss, or a cancel, hangs and is killed.
    """
    alive, held = os.pipe()
    parent = os.getpid()
    # A word to stop that comes before the job can hear it waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = os.fork()
    if pid == 0:
        os.close(alive)
        _be_the_job(claim, configuration, parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.close(held)
    _wait(pid, alive, stopping, Sight(look, configuration))
    os.close(alive)
    return _death(os.waitpid(pid, 0)[1])


def subject_of(claim: Claim) -> Subject:
    """A job's lines carry the id of the request that submitted it."""
    return Subject(claim.request_id, claim.owner, claim.job_id)


class Sight:
    """How a job looks from beside: one that lives ends soon after its claim is lost or its owner cancels."""

    def __init__(self, look: Callable[[], Standing], configuration: Configuration) -> None:
        self._look = look
        self._patience = {"lost": configuration.lease_seconds, "cancel": configuration.cancel_seconds}
        self.pause_seconds = min(self._patience.values()) / 3
        self._seen: Standing = "kept"
        self._since = time.monotonic()

    def is_hopeless(self) -> bool:
        """Asked after every pause: what it should have heeded was there for longer than it may take."""
        try:
            standing = self._look()
        except Unavailable:
            standing = "kept"
        if standing != self._seen:
            self._seen, self._since = standing, time.monotonic()
        return time.monotonic() - self._since >= self._patience.get(standing, math.inf)


def _wait(pid: int, alive: int, stopping: Stopping, sight: Sight) -> None:
    """Until the process ends, which closes its end of the pipe; pass the word on if the worker is to stop."""
    watched = [alive, stopping.reader]
    while True:
        ready = select.select(watched, [], [], sight.pause_seconds)[0]
        if alive in ready:
            return
        if stopping.reader in ready:
            os.kill(pid, signal.SIGTERM)
            watched = [alive]
        elif sight.is_hopeless():
            os.kill(pid, signal.SIGKILL)


def _death(status: int) -> str | None:
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return None
    return f"its process was killed by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"


def _be_the_job(claim: Claim, configuration: Configuration, parent: int) -> None:
    """Never returns: nothing of the parent may run in this process once the job is done."""
    code = 1
    try:
        die_with_parent(parent)
        concern_process(subject_of(claim))
        _limit_memory(configuration)
        run_job(claim, configuration)
        code = 0
    except BaseException:
        log.exception("the job's process failed")
    finally:
        os._exit(code)


def _limit_memory(configuration: Configuration) -> None:
    """Private memory only (RLIMIT_DATA): the mapped tensor belongs to the kernel, which may drop it at any time."""
    allowed = configuration.max_job_memory_bytes + BYTES_PER_THREAD * (configuration.threads_per_job + 2)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = _private_bytes() + allowed
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _private_bytes() -> int:
    """What was inherited from the parent is not the job's fault."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) << 10
