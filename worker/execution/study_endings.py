"""End comparisons whose runs have all ended: make the recommendation, store it, and end the study."""

import logging
import threading
from functools import partial

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import StoreFull, Unavailable
from sparse_ncp.worker.operations.study_tables import StudyTables
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.store.files import is_storage_failure
from sparse_ncp.worker.store.local import open_store
from sparse_ncp.worker.store.store import Store

log = logging.getLogger("ncp.study")


def end_comparisons(records: ExecutionRecords, store: Store, configuration: Configuration) -> None:
    """End every comparison that lacks only its recommendation.

    Several processes may call this at once: each comparison is reserved for one of them. If that process dies, the
    reservation expires and another process starts again.
    """
    tables = StudyTables(records, store)
    while (ending := records.endings.take()) is not None:
        recommendation = None
        if ending.attempt > configuration.max_crashes:
            log.error("study %s: ends without a recommendation, since making it has crashed repeatedly", ending.id)
        else:
            try:
                study, renew = records.studies.find(ending.id), partial(records.endings.renew, ending.id)
                recommendation = tables.recommendation(study, renew)
            except Unavailable:
                raise
            except Exception as error:
                if isinstance(error, OSError) and (isinstance(error, StoreFull) or is_storage_failure(error)):
                    log.warning("study %s: its recommendation must wait: %s", ending.id, error)
                    records.endings.postpone(ending.id)
                    return
                log.exception("study %s: ends without a recommendation, since making it has failed", ending.id)
        if records.endings.end(ending.id, recommendation):
            log.info("study %s: ended", ending.id)


class StudyEndingThread(threading.Thread):
    """End comparisons at intervals while a worker runs.

    Workers also do so after every job. The thread is for comparisons that were cancelled while none of their runs was
    running, and for those whose process died.
    """

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(name="study-endings", daemon=True)
        self._configuration = configuration
        self._records = ExecutionRecords.of(configuration)
        self._store = open_store(configuration)
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._configuration.reaper_seconds):
            try:
                end_comparisons(self._records, self._store, self._configuration)
            except Unavailable as error:
                log.warning("no comparison could be ended: %s", error)
            except Exception:
                log.exception("a comparison could not be ended, and is tried again later")

    def end(self) -> None:
        """Stop the thread. A recommendation that is being made is left to another worker."""
        self._ended.set()
