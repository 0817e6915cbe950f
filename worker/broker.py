"""The broker: the Celery app, its one queue of wake-up messages, and how to send them."""

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
# Messages that may wait to be taken: whoever takes one claims until nothing is left, so more would wake nobody else.
MAX_PENDING = 16
# Between two rounds of sending: the first wake-up goes at once, what is asked for soon after it goes together.
BATCH_SECONDS = 0.02
# How long a process that ends waits for its last messages to be sent.
CLOSE_SECONDS = 5.0
log = logging.getLogger("ncp.jobs")

if TYPE_CHECKING:
    from celery import Celery


@cache
def celery_app(configuration: Configuration) -> "Celery":
    """The app of every process. Messages carry nothing: the record is the truth, so they are acknowledged at once."""
    from celery import Celery  # a fifth of a second to load: an API answers before it sends a message

    celery = Celery("ncp", broker=broker_url(str(configuration.redis_url)), set_as_current=False)
    celery.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=False,
        worker_disable_prefetch=True,  # else a message waits behind a busy worker while another idles
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_proc_alive_timeout=30.0,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "global_keyprefix": keys.BROKER,
            "socket_timeout": 10,
            "socket_connect_timeout": 2,
            "retry_on_timeout": True,
        },
    )
    return celery


def broker_url(redis_url: str) -> str:
    """The address as Celery spells it: for a unix socket it has a form of its own."""
    if not redis_url.startswith("unix://"):
        return redis_url
    found = parse_url(redis_url)  # type: ignore[no-untyped-call]
    user, password = (quote(found.get(name) or "", safe="") for name in ("username", "password"))
    credentials = f"{user}:{password}@" if user or password else ""
    return f"redis+socket://{credentials}{quote(found['path'])}?virtual_host={found.get('db', 0)}"


def wake_worker(configuration: Configuration) -> None:
    """Send one wake-up message, for one worker. Losing it is harmless: reapers repeat it every few seconds.

    Unavailable if Redis is away.
    """
    from kombu.exceptions import OperationalError

    # One retry at once: a connection from before a restart of Redis is only found dead when it is used.
    policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    try:
        celery_app(configuration).send_task(TASK, retry=True, retry_policy=policy)
    except OperationalError as error:
        raise Unavailable(f"Redis cannot be used: {error}") from error


class WakeUpThread:
    """Sends wake-ups in a thread: no submission waits for them, and many at once share a few."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._changed = threading.Condition()
        self._pending = 0
        self._closed = False
        self._pause = 0.0
        self._thread: threading.Thread | None = None

    def notify(self, count: int = 1) -> None:
        """Jobs were queued. They are durable whether or not the messages arrive: reapers repeat lost ones."""
        if not count:
            return
        with self._changed:
            self._pending += count
            self._start()
            self._changed.notify()

    def open(self) -> None:
        """Load Celery now, beside whatever else happens, not with the first wake-up."""
        with self._changed:
            self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wake-ups", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Return once what was asked for is sent, or Redis has not taken it in time: a reaper sends it then."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        max_pending = max(MAX_PENDING, self._configuration.workers)
        celery_app(self._configuration)
        with closing(RedisConnection.of(self._configuration)) as connection:
            while count := self._take_pending():
                try:
                    for _ in range(min(count, max_pending - _queue_length(connection))):
                        wake_worker(self._configuration)
                except Unavailable as error:
                    log.warning("no wake-up message was sent, a worker will find the job by itself: %s", error)
                except Exception:
                    # The border of the thread: without it every job would wait for a reaper.
                    log.exception("no wake-up message was sent, a worker will find the job by itself")

    def _take_pending(self) -> int:
        """How many were asked for since the last time; 0 at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, self._pause)
            self._changed.wait_for(lambda: self._pending or self._closed)
            self._pause = BATCH_SECONDS
            count, self._pending = self._pending, 0
            return count


def pending_wakeups(configuration: Configuration) -> int:
    """How many wake-up messages no worker has taken yet."""
    with closing(RedisConnection.of(configuration)) as connection:
        return _queue_length(connection)


def _queue_length(connection: RedisConnection) -> int:
    return int(connection.command("LLEN", keys.BROKER + QUEUE))
