"""The process of a job, seen from its parent: forked, limited in memory, watched, killed where it hangs."""

import logging
import math
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim
from sparse_ncp.worker.errors import StoreFull, Unavailable
from sparse_ncp.worker.execution.run_batch import run_batch
from sparse_ncp.worker.execution.run_job import run_job
from sparse_ncp.worker.logs import LogContext, bind_process_context
from sparse_ncp.worker.processes import die_with_parent
from sparse_ncp.worker.records.claims import LeaseStatus
from sparse_ncp.worker.store.files import is_storage_failure

# What the threads of a job map for themselves: a stack each, and the work space of its BLAS.
BYTES_PER_THREAD = 96 << 20
# Signals that a process brings upon itself. SIGBUS is not one: a page of the mapped tensor could not be read.
FAULT_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGXCPU}
# Of a thousand: a process that takes half as much memory as the largest goes first.
OOM_SCORE = 500
log = logging.getLogger("ncp.job")


class Death(NamedTuple):
    """How the process of an attempt died, and through what: only the job's own doing counts against it.

    `environment`: it ended itself, since neither the disk nor Redis let it go on. `outside`: somebody killed it.
    """

    how: str
    cause: Literal["job", "environment", "outside"]


class StopSignal:
    """A flag that forked children inherit: a pipe, which stays readable for all of them once something was written."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def set(self) -> None:
        """Set the flag. Safe in a signal handler, and to call twice."""
        os.write(self._writer, b".")

    def is_set(self) -> bool:
        return bool(select.select([self.reader], [], [], 0)[0])


def run_in_child_process(
    claim: Claim, configuration: Configuration, stopping: StopSignal, lease_status: Callable[[], LeaseStatus]
) -> Death | None:
    """Run one attempt in a process of its own. None if it reported its outcome, else how it died.

    A process that does not end after `lease_status` says that the claim is lost or cancelled hangs, and is killed.
    """
    reader, writer = os.pipe()
    parent, out_of_memory = os.getpid(), _count_oom_kills()
    # A SIGTERM that comes before the job can handle it waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child_main(claim, configuration, parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.close(writer)
    _wait_for_exit(pid, reader, stopping, Watchdog(lease_status, configuration))
    os.close(reader)
    return _cause_of_death(os.waitpid(pid, 0)[1], _count_oom_kills() > out_of_memory)


def log_context_of(claim: Claim) -> LogContext:
    """The job of the claim, its owner, and the request that submitted it."""
    return LogContext(claim.request_id, claim.owner, claim.job_id)


class Watchdog:
    """Tells a job that hangs from one that lives, which ends soon after its claim is lost or its owner cancels."""

    def __init__(self, lease_status: Callable[[], LeaseStatus], configuration: Configuration) -> None:
        self._lease_status = lease_status
        self._patience = {"lost": configuration.lease_seconds, "cancel_requested": configuration.cancel_seconds}
        self.pause_seconds = min(self._patience.values()) / 3
        self._seen: LeaseStatus = "held"
        self._since = time.monotonic()

    def has_expired(self) -> bool:
        """Whether the reason to end has been there for longer than ending may take. Asked after every pause."""
        try:
            status = self._lease_status()
        except Unavailable:
            status = "held"
        if status != self._seen:
            self._seen, self._since = status, time.monotonic()
        return time.monotonic() - self._since >= self._patience.get(status, math.inf)


def _wait_for_exit(pid: int, reader: int, stopping: StopSignal, watchdog: Watchdog) -> None:
    """Wait until the process ends, which closes its end of the pipe; signal it if the worker must stop."""
    watched = [reader, stopping.reader]
    while True:
        ready = select.select(watched, [], [], watchdog.pause_seconds)[0]
        if reader in ready:
            return
        if stopping.reader in ready:
            os.kill(pid, signal.SIGTERM)
            watched = [reader]
        elif watchdog.has_expired():
            os.kill(pid, signal.SIGKILL)


def _cause_of_death(status: int, ran_out_of_memory: bool) -> Death | None:
    """How the process died; None if it reported its outcome."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return None
    if code == os.EX_TEMPFAIL:
        return Death("its process ended since the disk or Redis was away", "environment")
    if code > 0:
        return Death(f"its process ended with {code}", "job")
    killed = signal.Signals(-code)
    is_own_fault = killed in FAULT_SIGNALS or (killed == signal.SIGKILL and ran_out_of_memory)
    return Death(f"its process was killed by {killed.name}", "job" if is_own_fault else "outside")


def _count_oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started; 0 where it does not say."""
    counters = Path("/proc/vmstat")
    if not counters.exists():
        return 0
    return next((int(line.split()[1]) for line in counters.read_text().splitlines() if line.startswith("oom_kill ")), 0)


def _child_main(claim: Claim, configuration: Configuration, parent: int) -> None:
    """Run the job and exit: nothing of the parent may run in this process once the job is done."""
    code = 1
    try:
        die_with_parent(parent)
        bind_process_context(log_context_of(claim))
        _limit_memory(configuration)
        _raise_oom_score()
        (run_job if claim.batch is None else run_batch)(claim, configuration)
        code = 0
    except OSError as error:
        away = isinstance(error, (Unavailable, StoreFull)) or is_storage_failure(error)
        code = os.EX_TEMPFAIL if away else 1
        log.exception("the job's process failed")
    except BaseException:
        log.exception("the job's process failed")
    finally:
        os._exit(code)


def _raise_oom_score() -> None:
    """Where the machine has no memory left, let the kernel choose the job, not Redis or the worker. Never later than it
    would have: only who may is allowed to lower the score, and a job runs as well where it cannot be changed."""
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError):
        if int(score.read_text()) < OOM_SCORE:
            score.write_text(str(OOM_SCORE))


def _limit_memory(configuration: Configuration) -> None:
    """Limit private memory (RLIMIT_DATA): the mapped tensor belongs to the kernel, which may drop it at any time."""
    allowed = configuration.max_job_memory_bytes + BYTES_PER_THREAD * (configuration.threads_per_job + 2)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = _private_bytes() + allowed
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _private_bytes() -> int:
    """The memory that was inherited from the parent, which does not count."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) << 10
