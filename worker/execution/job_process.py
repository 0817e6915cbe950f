"""Run a job in a child process: fork it, limit its memory, watch it, and kill it if it hangs."""

import logging
import math
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim
from sparse_ncp.worker.errors import StoreFull, Unavailable
from sparse_ncp.worker.execution.run_batch import run_batch
from sparse_ncp.worker.execution.run_job import run_job
from sparse_ncp.worker.logs import LogContext, bind_process_context
from sparse_ncp.worker.processes import die_with_parent, limit_memory
from sparse_ncp.worker.records.claims import LeaseStatus
from sparse_ncp.worker.store.files import is_storage_failure

# Memory that each thread of a job maps: its stack and the work space of BLAS.
BYTES_PER_THREAD = 96 << 20
# Signals caused by the process itself. SIGBUS is not among them: it means that a page of the mapped tensor could not
# be read.
FAULT_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGXCPU}
# Added to a score of at most 1000, so that the kernel prefers a job to any process less than twice as large.
OOM_SCORE = 500
log = logging.getLogger("ncp.job")


class Death(NamedTuple):
    """How the process of an attempt died, and the cause. Only deaths caused by the job count against it.

    `environment`: the process ended because the disk or Redis was unavailable. `outside`: it was killed from outside.
    """

    how: str
    cause: Literal["job", "environment", "outside"]


class StopSignal:
    """A flag that forked children inherit, as a pipe that becomes readable when the flag is set."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def set(self) -> None:
        """Set the flag. May be called in a signal handler, and more than once."""
        os.write(self._writer, b".")

    def is_set(self) -> bool:
        """Return whether the flag was set."""
        return bool(select.select([self.reader], [], [], 0)[0])


def run_in_child_process(
    claim: Claim, configuration: Configuration, stopping: StopSignal, lease_status: Callable[[], LeaseStatus]
) -> Death | None:
    """Run one attempt in a child process; return None if it reported its outcome, else how it died.

    A process that does not end after `lease_status` says that the claim is lost or cancelled is killed.
    """
    reader, writer = os.pipe()
    parent, out_of_memory = os.getpid(), _count_oom_kills()
    # Hold back a SIGTERM until the child can handle it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child_main(claim, configuration, parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.close(writer)
    watchdog, watched = Watchdog(lease_status, configuration), [reader, stopping.reader]
    # The process closes its end of the pipe when it ends.
    while reader not in (ready := select.select(watched, [], [], watchdog.pause_seconds)[0]):
        if stopping.reader in ready:
            os.kill(pid, signal.SIGTERM)
            watched = [reader]
        elif watchdog.has_expired():
            os.kill(pid, signal.SIGKILL)
    os.close(reader)
    return _cause_of_death(os.waitpid(pid, 0)[1], _count_oom_kills() > out_of_memory)


def log_context_of(claim: Claim) -> LogContext:
    """Return the log context of a claim: the job, its owner, and the request that submitted it."""
    return LogContext(claim.request_id, claim.owner, claim.job_id)


class Watchdog:
    """Detect a job that hangs: one that does not end soon after its claim was lost or its owner cancelled it."""

    def __init__(self, lease_status: Callable[[], LeaseStatus], configuration: Configuration) -> None:
        self._lease_status = lease_status
        self._patience = {"lost": configuration.lease_seconds, "cancel_requested": configuration.cancel_seconds}
        self.pause_seconds = min(self._patience.values()) / 3
        self._seen: LeaseStatus = "held"
        self._since = time.monotonic()

    def has_expired(self) -> bool:
        """Return whether the job should have ended by now. Call it once per `pause_seconds`."""
        try:
            status = self._lease_status()
        except Unavailable:
            status = "held"
        if status != self._seen:
            self._seen, self._since = status, time.monotonic()
        return time.monotonic() - self._since >= self._patience.get(status, math.inf)


def _cause_of_death(status: int, ran_out_of_memory: bool) -> Death | None:
    """Return how the process died; None if it reported its outcome."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return None
    if code == os.EX_TEMPFAIL:
        return Death("its process ended because the disk or Redis was unavailable", "environment")
    if code > 0:
        return Death(f"its process ended with {code}", "job")
    killed = signal.Signals(-code)
    is_own_fault = killed in FAULT_SIGNALS or (killed == signal.SIGKILL and ran_out_of_memory)
    return Death(f"its process was killed by {killed.name}", "job" if is_own_fault else "outside")


def _count_oom_kills() -> int:
    """Return how many processes the kernel has killed because memory ran out; 0 if it does not say."""
    counters = Path("/proc/vmstat")
    if not counters.exists():
        return 0
    return next((int(line.split()[1]) for line in counters.read_text().splitlines() if line.startswith("oom_kill ")), 0)


def _child_main(claim: Claim, configuration: Configuration, parent: int) -> None:
    """Run the job and exit, without running any code of the parent afterwards."""
    code = 1
    try:
        die_with_parent(parent)
        bind_process_context(log_context_of(claim))
        threads = BYTES_PER_THREAD * (configuration.threads_per_job + 2)
        limit_memory(configuration.max_job_memory_bytes + threads, OOM_SCORE)
        (run_job if claim.batch is None else run_batch)(claim, configuration)
        code = 0
    except OSError as error:
        away = isinstance(error, (Unavailable, StoreFull)) or is_storage_failure(error)
        code = os.EX_TEMPFAIL if away else 1
        log.exception("the process of the job failed")
    except BaseException:
        log.exception("the process of the job failed")
    finally:
        os._exit(code)
