"""The Celery app, and the wake-up messages that are all it carries."""

import logging
import threading
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from redis.connection import parse_url

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection

QUEUE = "work"
TASK = "ncp.work"
# Messages that may wait in the queue. A worker that takes one claims jobs until none is left, so more are pointless.
MAX_PENDING = 16
# Pause between two rounds of sending: the first message goes at once, those requested soon after it go together.
BATCH_SECONDS = 0.02
# Time that a process waits at its end for the last messages to be sent.
CLOSE_SECONDS = 5.0
log = logging.getLogger("ncp.jobs")

if TYPE_CHECKING:
    from celery import Celery


@cache
def celery_app(configuration: Configuration) -> "Celery":
    """Return the Celery app of this process.

    Messages are empty and acknowledged early, because the job record in Redis says what is to be done.
    """
    from celery import Celery  # takes 0.2 s to load, which must not delay the first answer of the API

    celery = Celery("ncp", broker=broker_url(str(configuration.redis_url)), set_as_current=False)
    celery.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=False,
        worker_disable_prefetch=True,  # otherwise a message waits behind a busy worker while another is idle
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_proc_alive_timeout=30.0,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,  # a Redis that refuses to write must not end the worker, nor its jobs
        broker_transport_options={
            "global_keyprefix": keys.BROKER,
            "socket_timeout": 10,
            "socket_connect_timeout": 2,
            "retry_on_timeout": True,
        },
    )
    return celery


def broker_url(redis_url: str) -> str:
    """Convert an address to Celery's form, which differs for unix sockets."""
    if not redis_url.startswith("unix://"):
        return redis_url
    found = parse_url(redis_url)  # type: ignore[no-untyped-call]
    user, password = (quote(found.get(name) or "", safe="") for name in ("username", "password"))
    credentials = f"{user}:{password}@" if user or password else ""
    return f"redis+socket://{credentials}{quote(found['path'])}?virtual_host={found.get('db', 0)}"


def wake_worker(configuration: Configuration) -> None:
    """Send a wake-up message for one worker. A lost message does no harm: reapers send another within seconds.

    Raises
    ------
    Unavailable
        If Redis cannot be reached.
    """
    from kombu.exceptions import ChannelError, OperationalError

    # One immediate retry: that Redis was restarted is only noticed when an old connection is used.
    policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    try:
        celery_app(configuration).send_task(TASK, retry=True, retry_policy=policy)
    except (OperationalError, ChannelError) as error:  # the latter from a Redis that refuses to write
        raise Unavailable(f"Redis cannot be used: {error}") from error


class WakeUpThread:
    """A thread that sends wake-up messages, so that submissions need not wait. Many requests share a few messages."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._changed = threading.Condition()
        self._pending = 0
        self._closed = False
        self._pause = 0.0
        self._thread: threading.Thread | None = None

    def notify(self, count: int = 1) -> None:
        """Ask for workers to be woken for `count` new jobs. Returns at once."""
        if not count:
            return
        self.open()
        with self._changed:
            self._pending += count
            self._changed.notify()

    def open(self) -> None:
        """Start the thread unless it runs already. It loads Celery in the background."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wake-ups", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait until pending messages are sent, up to CLOSE_SECONDS; reapers send the rest."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        max_pending = max(MAX_PENDING, self._configuration.workers)
        celery_app(self._configuration)
        with closing(RedisConnection.of(self._configuration)) as connection:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, self._pause)
                    self._changed.wait_for(lambda: self._pending or self._closed)
                    self._pause = BATCH_SECONDS
                    count, self._pending = self._pending, 0
                if not count:  # closed
                    return
                try:
                    for _ in range(min(count, max_pending - _queue_length(connection))):
                        wake_worker(self._configuration)
                except Unavailable as error:
                    log.warning(
                        "could not wake a worker; the job starts when a reaper sends the next wake-up: %s", error
                    )
                except Exception:
                    # If the thread ended here, every later job would wait for a reaper.
                    log.exception("could not wake a worker; the job starts when a reaper sends the next wake-up")


def pending_wakeups(configuration: Configuration) -> int:
    """Return the number of wake-up messages in the queue."""
    with closing(RedisConnection.of(configuration)) as connection:
        return _queue_length(connection)


def _queue_length(connection: RedisConnection) -> int:
    return int(connection.command("LLEN", keys.BROKER + QUEUE))
