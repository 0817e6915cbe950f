"""The Celery worker: warm up, start the background threads, run jobs until a signal."""

import os
import socket
import warnings

import numpy as np
import scipy.io  # noqa: F401 - loaded here, before the first job is forked
from celery import signals

from sparse_ncp.solvers import METHODS, Settings, Stop, solve
from sparse_ncp.worker.broker import celery_app
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.execution.inspections import InspectionThread
from sparse_ncp.worker.execution.job_process import StopSignal
from sparse_ncp.worker.execution.reaper import Reaper
from sparse_ncp.worker.execution.study_endings import StudyEndingThread
from sparse_ncp.worker.execution.tasks import register
from sparse_ncp.worker.logs import configure_logging, ignore_celery_as_root
from sparse_ncp.worker.operations.cleanup import CleanupThread
from sparse_ncp.worker.processes import no_garbage_collection, wait_for_start


def worker_name() -> str:
    """Return a name that is unique among live workers."""
    return f"ncp-{os.getpid()}@{socket.gethostname()}"


def run_worker(configuration: Configuration, start_fd: int | None = None) -> int:
    """Run jobs until a signal, then checkpoint them and return them to the queue.

    `start_fd` becomes readable once Redis is available.
    """
    configure_logging(configuration)
    ignore_celery_as_root()
    with no_garbage_collection():
        warm()
    if start_fd is not None:
        wait_for_start(start_fd)
    name = worker_name()
    celery = celery_app(configuration)
    stopping = StopSignal()
    register(celery, configuration, stopping, name)
    threads = (
        CleanupThread(configuration, name),
        Reaper(configuration, name),
        StudyEndingThread(configuration),
        InspectionThread(configuration),
    )
    signals.worker_shutting_down.connect(lambda **_: stopping.set(), weak=False)
    signals.worker_process_shutdown.connect(exit_at_once, weak=False)
    for thread in threads:
        signals.worker_ready.connect(lambda thread=thread, **_: thread.start(), weak=False)
        signals.worker_shutdown.connect(lambda thread=thread, **_: thread.end(), weak=False)
    signals.setup_logging.connect(lambda **_: None, weak=False)  # otherwise Celery configures logging
    worker = celery.Worker(  # as `celery worker` does, without its command line, which is slow to load
        hostname=name,
        pool_cls="prefork",
        concurrency=configuration.workers,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()
    return 0


def exit_at_once(exitcode: int, **_: object) -> None:
    """End a pool child whose last task is done, instead of letting billiard wait a second before it does the same."""
    os._exit(exitcode)


def warm() -> None:
    """Run every method once on tiny tensors, so that no job has to wait for compilation."""
    complete, gaps = np.ones((2, 2)), np.ones((8, 8))
    gaps[0, 0] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method in METHODS:
            settings = Settings(rank=1, method=method, missing="nan", stop=Stop(max_iterations=1))
            for tensor in (complete, complete.astype(np.float32), gaps):
                solve(tensor, settings, threads=1)
