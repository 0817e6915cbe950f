"""A worker with something wrong in it: `python -m tests.faults.started deaf` or `… hasty`."""

import sys

from celery import signals

from worker.configuration import Configuration
from worker.queue import QUEUE, queue_of, run_worker


def deaf() -> None:
    """Connected and alive, but it takes no calls, as after a reconnection that went wrong."""
    signals.worker_ready.connect(lambda sender, **_: sender.cancel_task_queue(QUEUE), weak=False)


def hasty() -> None:
    """What is not acknowledged within a second is delivered again."""
    options = queue_of(Configuration()).conf.broker_transport_options
    options["visibility_timeout"] = 1


if __name__ == "__main__":
    {"deaf": deaf, "hasty": hasty}[sys.argv[1]]()
    sys.exit(run_worker(Configuration()))
