"""`ncp serve`: start Redis, the worker and the API; restart what dies; stop them together.

Worker and API load their modules while Redis starts. What this process needs to talk to Redis takes a tenth of a second
to load, so it is imported where it is used, after the others have begun.
"""

import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from sparse_ncp.app.server.bind import bind_socket
from sparse_ncp.app.server.data_folder import check_records, lock_data_folder, remove_address_file, write_address_file
from sparse_ncp.app.server.discovery import api_version
from sparse_ncp.app.server.embedded_redis import discard_socket, socket_path, start_redis, url_of
from sparse_ncp.app.server.errors import NotReady, RedisStartError
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.data_format import check_redis, mark_folder, mark_redis
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.logs import configure_logging
from sparse_ncp.worker.processes import StartSignal, start, stop

# A process that dies again and again waits longer and longer, until it has lived for a while.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, LIVED_SECONDS = 0.2, 10.0, 60.0
# A start that takes longer than this says why.
LONG_START_SECONDS = 10.0
# The API needs this long to stop, beyond the time that its transfers have.
API_STOP_SECONDS = 5.0
# Redis needs milliseconds to stop, unless a slow disk is still flushing its log.
REDIS_STOP_SECONDS = 10.0
# Often enough that a restart is hardly noticed; each look is a system call per process.
POLL_SECONDS = 0.1
log = logging.getLogger("ncp.serve")


class SupervisedProcess:
    """A child process that is started again when it dies."""

    def __init__(self, name: str, begin: "Callable[[], subprocess.Popen[bytes]]", stop_seconds: float) -> None:
        self.name = name
        self._begin = begin
        self._stop_seconds = stop_seconds
        self._process = begin()
        self._since = time.monotonic()
        self._pause = FIRST_PAUSE_SECONDS
        self._restart_at: float | None = None

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def poll(self) -> None:
        """Restart the process if it died and has waited long enough."""
        now = time.monotonic()
        if self.is_alive:
            return
        if self._restart_at is None:
            self._pause = FIRST_PAUSE_SECONDS if now - self._since > LIVED_SECONDS else self._pause * 2
            self._pause = min(self._pause, LONGEST_PAUSE_SECONDS)
            self._restart_at = now + self._pause
            code = self._process.returncode
            log.error(
                "the %s ended unexpectedly (exit code %s); it will be restarted in %.1f s", self.name, code, self._pause
            )
        elif now >= self._restart_at:
            self._restart_at, self._since = None, now
            try:
                self._process = self._begin()
            except (RedisStartError, OSError) as error:  # a disk that is full or unavailable may come back
                log.error("the %s cannot be started again: %s", self.name, error)

    def stop(self) -> None:
        stop(self._process, self._stop_seconds)

    def kill(self) -> None:
        if self.is_alive:
            self._process.kill()


def serve(configuration: Configuration) -> None:
    """Run until a signal. Raises StartupError if the port or the data folder cannot be used."""
    configure_logging(configuration)
    with (
        bind_socket(configuration.host, configuration.port) as listener,
        lock_data_folder(configuration.data) as lock,
    ):
        mark_folder(configuration.data)
        Launcher(configuration, listener, lock).run()


class Launcher:
    """Starts Redis, the worker and the API, and stops them in the reverse order, so that jobs can be handed back."""

    def __init__(self, configuration: Configuration, listener: socket.socket, lock: int) -> None:
        self._configuration = configuration
        self._listener = listener
        self._lock = lock  # inherited by all who write to the folder, so held until the last of them is gone
        self._processes: list[SupervisedProcess] = []
        self._redis_folder = configuration.data / "redis"
        self._redis_socket: Path | None = None
        self._redis_is_ready = StartSignal()
        self._stop = threading.Event()

    def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.handle_signal)
        try:
            self._start()
            self._wait_until_ready()
            while not self._stop.wait(POLL_SECONDS):
                for process in self._processes:
                    process.poll()
        finally:
            for process in reversed(self._processes):
                process.stop()
            self._remove_traces()
            if self._stop.is_set():
                print("ncp has stopped", flush=True)

    def _start(self) -> None:
        if self._configuration.redis_url is None:
            self._redis_socket = socket_path(self._redis_folder)
            self._configuration = self._configuration.model_copy(update={"redis_url": url_of(self._redis_socket)})
        # Neither the worker nor the API uses Redis or a file before `_redis_is_ready` is set.
        environment = self._configuration.environment()
        fd, ready = self._listener.fileno(), self._redis_is_ready.reader
        # -P: a file of the same name in the current folder is not ours to run.
        command = [sys.executable, "-P", "-m", "sparse_ncp.app.cli.main"]
        worker = [*command, "worker", "--start-fd", str(ready)]
        api = [*command, "api", "--start-fd", str(ready), "--fd", str(fd)]
        worker_seconds = self._configuration.stop_seconds
        api_seconds = self._configuration.drain_seconds + API_STOP_SECONDS
        self._processes += [
            SupervisedProcess("worker", lambda: start(worker, environment, [self._lock, ready]), worker_seconds),
            SupervisedProcess("api", lambda: start(api, environment, [fd, ready]), api_seconds),
        ]
        if self._redis_socket is not None:
            self._start_redis(self._redis_socket)
        check_records(self._configuration)
        mark_redis(self._configuration)
        self._redis_is_ready.set()

    def _start_redis(self, address: Path) -> None:
        """Start Redis, and return running jobs to the queue: no worker of an earlier run can be alive."""
        configuration, folder = self._configuration, self._redis_folder
        redis = SupervisedProcess(
            "redis", lambda: start_redis(configuration, address, folder, [self._lock]), REDIS_STOP_SECONDS
        )
        self._processes.insert(0, redis)
        check_redis(configuration)
        from sparse_ncp.worker.records.redis.connection import RedisConnection
        from sparse_ncp.worker.records.workers import Leases

        leases = Leases(RedisConnection.of(configuration))
        leases.clear()
        for job_id in leases.reap(everything=True):
            log.warning("job %s was running when the server ended; it will be resumed", job_id)

    def _remove_traces(self) -> None:
        try:
            remove_address_file(self._configuration.data)
            if self._redis_socket is not None:
                discard_socket(self._redis_socket, self._configuration.data)
        except OSError as error:  # a disk that is away holds up no stop; the next start writes them anew
            log.warning("could not remove the address files: %s", error)

    def _wait_until_ready(self) -> None:
        """Print the address once a request is answered and a worker is there."""
        seconds, started, explained = self._configuration.start_seconds, time.monotonic(), False
        while not self._stop.is_set():
            dead = next((process.name for process in self._processes if not process.is_alive), None)
            if dead is not None:
                raise NotReady(f"the {dead} does not start, see its messages above")
            if api_version(self._address) is not None and self._worker_is_live():
                write_address_file(self._configuration.data, self._address)
                print(f"ncp is ready at {self._address}", flush=True)
                return
            waited = time.monotonic() - started
            if waited > seconds:
                raise NotReady(
                    f"the server is not ready after {seconds:g} s; see its messages above, or raise NCP_START_SECONDS"
                )
            if waited > LONG_START_SECONDS and not explained:
                log.info("the first start compiles the solvers, which can take minutes on a busy machine")
                explained = True
            self._stop.wait(POLL_SECONDS)

    def handle_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Stop; at the second signal, kill everything at once."""
        if self._stop.is_set():
            for process in self._processes:
                process.kill()
        else:
            seconds = f"{self._configuration.stop_seconds:g} s"
            print(f"ncp is stopping; running jobs are checkpointed within {seconds}; repeat to stop now", flush=True)
        self._stop.set()

    def _worker_is_live(self) -> bool:
        from sparse_ncp.worker.records.redis.connection import RedisConnection
        from sparse_ncp.worker.records.workers import WorkerRecords

        try:
            return WorkerRecords(RedisConnection.of(self._configuration)).live_count() > 0
        except Unavailable:
            return False

    @property
    def _address(self) -> str:
        """Return the address for callers on this machine, also if the server listens on all addresses."""
        host, port = self._listener.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
