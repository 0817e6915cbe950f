"""`ncp serve`: Redis, the worker and the API on one machine, started, watched and stopped together."""

import http.client
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

from app.claims import Taken, take_folder, take_port
from app.note import remove_note, write_note
from app.parts import Part
from worker.configuration import Configuration
from worker.embedded_redis import NoServer, discard_socket, socket_path, start_redis, url_of
from worker.errors import Unavailable
from worker.leases import Leases
from worker.link import connect
from worker.logs import set_up
from worker.process import start

FAILED, REFUSED = 1, 2
READY_SECONDS = 60.0
API_STOP_SECONDS = 15.0
REDIS_STOP_SECONDS = 10.0
LOOK_SECONDS = 0.1

log = logging.getLogger("ncp.serve")


def serve(configuration: Configuration) -> int:
    """Run until a signal. A port or a data folder in use is one clear line and exit code 2."""
    set_up(configuration)
    try:
        with take_port(configuration.host, configuration.port) as listener, take_folder(configuration.data) as lock:
            return Launcher(configuration, listener, lock.fileno()).run()
    except (Taken, NoServer) as refusal:
        print(f"ncp: {refusal}", file=sys.stderr)
        return REFUSED


class Launcher:
    """The parts in the order they start. They stop in the reverse order, so that jobs can still be handed back."""

    def __init__(self, configuration: Configuration, listener: socket.socket, lock: int) -> None:
        self._configuration = configuration
        self._listener = listener
        self._lock = lock  # held by whoever writes to the folder, until the last of them is gone
        self._parts: list[Part] = []
        self._socket: Path | None = None
        self._stop = threading.Event()

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._asked_to_stop)
        try:
            self._start()
            return self._watch() if self._becomes_ready() else FAILED
        finally:
            for part in reversed(self._parts):
                part.stop()
            remove_note(self._configuration.data)
            if self._socket is not None:
                discard_socket(self._socket, self._configuration.data)
            if self._stop.is_set():
                print("ncp has stopped", flush=True)

    def _start(self) -> None:
        if self._configuration.redis_url is None:
            self._start_redis()
        environment = self._configuration.environment()
        # -P: a file of the same name in the current folder is not ours to run.
        command, fd = [sys.executable, "-P", "-m", "app.command"], self._listener.fileno()
        self._add(
            "worker", lambda: start([*command, "worker"], environment, [self._lock]), self._configuration.stop_seconds
        )
        self._add("api", lambda: start([*command, "api", "--fd", str(fd)], environment, [fd]), API_STOP_SECONDS)

    def _start_redis(self) -> None:
        """Ours alone: no worker of an earlier run can be alive, so its jobs go back to the queue at once."""
        folder = self._configuration.data / "redis"
        self._socket = address = socket_path(folder)
        configuration = self._configuration
        self._add("redis", lambda: start_redis(configuration, address, folder, [self._lock]), REDIS_STOP_SECONDS)
        self._configuration = configuration.model_copy(update={"redis_url": url_of(address)})
        leases = self._leases()
        leases.forget_workers()
        for job_id in leases.reap(everything=True):
            log.warning("job %s was running when the server ended, it goes on", job_id)

    def _add(self, name: str, begin: "Callable[[], subprocess.Popen[bytes]]", stop_seconds: float) -> None:
        self._parts.append(Part(name, begin, stop_seconds))

    def _becomes_ready(self) -> bool:
        """Print the address once a request is answered and a worker is there."""
        deadline = time.monotonic() + READY_SECONDS
        while not self._stop.is_set() and time.monotonic() < deadline:
            dead = next((part.name for part in self._parts if not part.is_alive), None)
            if dead is not None:
                print(f"ncp: the {dead} does not start, see its messages above", file=sys.stderr)
                return False
            if self._api_answers() and self._worker_is_live():
                write_note(self._configuration.data, self._address)
                print(f"ncp is ready at {self._address}", flush=True)
                return True
            self._stop.wait(LOOK_SECONDS)
        if not self._stop.is_set():
            print(f"ncp: the server is not ready after {READY_SECONDS:.0f} s, see its messages above", file=sys.stderr)
        return self._stop.is_set()

    def _watch(self) -> int:
        while not self._stop.wait(LOOK_SECONDS):
            for part in self._parts:
                part.look()
        return 0

    def _asked_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        """Asked twice, it does not wait for anybody."""
        if self._stop.is_set():
            for part in self._parts:
                part.kill()
        else:
            print(f"ncp is stopping; running jobs are checkpointed, {self._patience}", flush=True)
        self._stop.set()

    @property
    def _patience(self) -> str:
        return f"within {self._configuration.stop_seconds:g} s; asked again, it does not wait"

    def _api_answers(self) -> bool:
        host, port = self._reachable()
        connection = http.client.HTTPConnection(host, port, timeout=1)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _leases(self) -> Leases:
        return Leases(connect(self._configuration), self._configuration)

    def _worker_is_live(self) -> bool:
        try:
            return self._leases().live_workers() > 0
        except Unavailable:
            return False

    @property
    def _address(self) -> str:
        host, port = self._reachable()
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def _reachable(self) -> tuple[str, int]:
        """From this machine; a server that listens everywhere is reached on the loopback address."""
        host, port = self._listener.getsockname()[:2]
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
