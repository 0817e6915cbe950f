"""The worker's broom: what has had its time is removed while the server runs."""

import logging
import threading

from worker.configuration import Configuration
from worker.errors import Unavailable
from worker.records import Records
from worker.retention import Retention
from worker.store import Store

log = logging.getLogger("ncp.retention")


class Tidier(threading.Thread):
    """Removes what has had its time, now and then, for as long as a worker runs. Of several workers one does it."""

    def __init__(self, configuration: Configuration, worker: str) -> None:
        super().__init__(name="tidier", daemon=True)
        self._records = Records.of(configuration)
        self._retention = Retention(self._records, Store(configuration.data), configuration)
        self._pause = configuration.tidy_seconds
        self._worker = worker
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                if self._records.take_turn_to_tidy(self._worker, self._pause):
                    self._tidy()
            except Unavailable as error:
                log.warning("tidying was put off: %s", error)
            except Exception:
                # The border of the thread: what cannot be removed today is tried again, and the log says why.
                log.exception("tidying failed, it is tried again")
            self._ended.wait(self._pause)

    def _tidy(self) -> None:
        for removed in self._retention.run():
            log.info("removed %s", removed)
            if self._ended.is_set():
                return

    def end(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join()
