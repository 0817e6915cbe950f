"""Tell a worker that there is something to do."""

from worker import keys
from worker.configuration import Configuration
from worker.link import connect
from worker.queue import QUEUE, TASK, queue_of


def wake(configuration: Configuration) -> None:
    """One call for one worker. Losing it is harmless: workers look for themselves every few seconds.

    Raises kombu's OperationalError if Redis is away.
    """
    # Once again at once: a connection from before a restart of Redis is only found dead when it is used.
    policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    queue_of(configuration).send_task(TASK, retry=True, retry_policy=policy)


def calls_waiting(configuration: Configuration) -> int:
    """Wake-up calls that no worker has taken yet."""
    with connect(configuration) as client:
        return int(client.llen(keys.BROKER + QUEUE))
