"""A worker with something wrong in it: `python -m tests.support.faulty_worker deaf` (or another name below)."""

import errno
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from celery import signals

from sparse_ncp.solvers import Diagnostics, State, diagnose, sweeps
from sparse_ncp.solvers.bcd.state import OnPrepare
from sparse_ncp.worker.broker import QUEUE, celery_app
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import StoreUnavailable
from sparse_ncp.worker.execution import attempt, run_job
from sparse_ncp.worker.execution.celery_worker import run_worker
from sparse_ncp.worker.store.local import open_store
from sparse_ncp.worker.store.store import Store

# The file that a pensive, thorough or homeless worker waits for, in the data folder.
GO = "go"


def deaf() -> None:
    """Connected and alive, but it takes no calls, as after a reconnection that went wrong."""
    signals.worker_ready.connect(lambda sender, **_: sender.cancel_task_queue(QUEUE), weak=False)


def hasty() -> None:
    """Redeliver messages that are not acknowledged within a second."""
    options = celery_app(Configuration()).conf.broker_transport_options
    options["visibility_timeout"] = 1


def pensive() -> None:
    """Hold the diagnosis of a result until a file appears, polling meanwhile for interruption."""

    def diagnose_later(*arguments: Any, cancelled: Callable[[], bool], **fields: Any) -> Diagnostics | None:
        while not (Configuration().data / GO).exists():
            if cancelled():
                return None
            time.sleep(0.01)
        return diagnose(*arguments, cancelled=cancelled, **fields)

    vars(attempt)["diagnose"] = diagnose_later


def thorough() -> None:
    """Hold the preparation of the first sweep until a file appears, reporting progress meanwhile."""

    def sweep_later(*arguments: Any, on_prepare: OnPrepare, **fields: Any) -> Iterator[State]:
        while not (Configuration().data / GO).exists():
            on_prepare("scan", 0.5)
            time.sleep(0.01)
        yield from sweeps(*arguments, on_prepare=on_prepare, **fields)

    vars(attempt)["sweeps"] = sweep_later


def homeless() -> None:
    """Let the disk fail whenever a job's process starts, but not when one is claimed, until a file appears."""

    def open_later(configuration: Configuration) -> Store:
        if not (configuration.data / GO).exists():
            raise StoreUnavailable(errno.EIO, "the disk cannot be used")
        return open_store(configuration)

    vars(run_job)["open_store"] = open_later


if __name__ == "__main__":
    {"deaf": deaf, "hasty": hasty, "pensive": pensive, "thorough": thorough, "homeless": homeless}[sys.argv[1]]()
    sys.exit(run_worker(Configuration()))
