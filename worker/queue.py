"""The Celery side: one queue of wake-up calls, and a worker that listens to it."""

import os
import socket
from functools import cache
from urllib.parse import urlsplit

from celery import Celery, signals

from worker import keys
from worker.configuration import Configuration
from worker.logs import ignore_celery_as_root, set_up

QUEUE = "work"
TASK = "ncp.work"


@cache
def queue_of(configuration: Configuration) -> Celery:
    """Messages carry nothing but the call to look: the record is the truth, so they are acknowledged at once."""
    celery = Celery("ncp", broker=broker_url(str(configuration.redis_url)), set_as_current=False)
    celery.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=False,
        worker_disable_prefetch=True,  # else a call waits behind a busy worker while another idles
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
    """Celery spells the address of a unix socket in its own way."""
    parts = urlsplit(redis_url)
    return f"redis+socket://{parts.path}" if parts.scheme == "unix" else redis_url


def worker_name() -> str:
    return f"ncp-{os.getpid()}@{socket.gethostname()}"


def run_worker(configuration: Configuration) -> int:
    """Run jobs until a signal; then checkpoint them and hand them back."""
    # Only a process that runs jobs loads the solvers' kernels, and before its children are forked: they share them.
    from worker.reaper import Reaper
    from worker.stopping import Stopping
    from worker.tasks import register
    from worker.tidier import Tidier
    from worker.warm import warm

    set_up(configuration)
    ignore_celery_as_root()
    warm()
    name = worker_name()
    celery = queue_of(configuration)
    stopping = Stopping()
    register(celery, configuration, stopping, name)
    beside = (Tidier(configuration, name), Reaper(configuration, name))
    signals.worker_shutting_down.connect(lambda **_: stopping.set(), weak=False)
    for thread in beside:
        signals.worker_ready.connect(lambda thread=thread, **_: thread.start(), weak=False)
        signals.worker_shutdown.connect(lambda thread=thread, **_: thread.end(), weak=False)
    signals.setup_logging.connect(lambda **_: None, weak=False)  # else Celery sets up its own
    celery.worker_main(_arguments(configuration, name))
    return 0


def _arguments(configuration: Configuration, name: str) -> list[str]:
    return [
        "--quiet",
        "worker",
        "--pool=prefork",
        f"--concurrency={configuration.workers}",
        f"--hostname={name}",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    ]
