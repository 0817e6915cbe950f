"""One part of the server: started, started again when it dies, stopped."""

import logging
import subprocess
import time
from collections.abc import Callable

from worker.embedded_redis import NoServer
from worker.process import stop

# A part that dies again and again is given more and more time, until it has lived for a while.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, LIVED_SECONDS = 0.2, 10.0, 60.0

log = logging.getLogger("ncp.serve")


class Part:
    def __init__(self, name: str, begin: "Callable[[], subprocess.Popen[bytes]]", stop_seconds: float) -> None:
        self.name = name
        self._begin = begin
        self._stop_seconds = stop_seconds
        self._process = begin()
        self._since = time.monotonic()
        self._pause = FIRST_PAUSE_SECONDS
        self._again_at: float | None = None

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def look(self) -> None:
        """Start it again if it died and has waited long enough."""
        now = time.monotonic()
        if self.is_alive:
            return
        if self._again_at is None:
            self._plan(now)
        elif now >= self._again_at:
            self._restart()

    def _plan(self, now: float) -> None:
        self._pause = FIRST_PAUSE_SECONDS if now - self._since > LIVED_SECONDS else self._pause * 2
        self._pause = min(self._pause, LONGEST_PAUSE_SECONDS)
        self._again_at = now + self._pause
        code = self._process.returncode
        log.error("the %s ended by itself (code %s), it is started again in %.1f s", self.name, code, self._pause)

    def _restart(self) -> None:
        self._again_at, self._since = None, time.monotonic()
        try:
            self._process = self._begin()
        except NoServer as error:
            log.error("the %s cannot be started again: %s", self.name, error)

    def stop(self) -> None:
        stop(self._process, self._stop_seconds)

    def kill(self) -> None:
        if self.is_alive:
            self._process.kill()
