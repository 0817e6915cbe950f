"""Look for zeros that look like missing readings in new tensors, while workers run."""

import logging
import threading
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers import find_zero_fibres
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import ZERO_REPORTS, ZeroMap, ZeroReport
from sparse_ncp.worker.errors import CorruptFile, NotFound, StoreFull, StoreUnavailable, Unavailable
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.local import open_store
from sparse_ncp.worker.store.store import Store

# Time between two searches: the page shows the findings soon after an upload.
PAUSE_SECONDS = 2.0
# Largest side of the map of zeros; longer modes are thinned.
MAX_SIDE = 128
log = logging.getLogger("ncp.worker")


def inspect_tensors(records: Records, store: Store) -> None:
    """Inspect the zeros of every new tensor, and store what was found beside it.

    A tensor that is being inspected when the process dies stays without a report: runs look for themselves.
    """
    while (sha256 := records.tensors.take_uninspected()) is not None:
        try:
            store.save_zeros(sha256, ZERO_REPORTS.dump_json(report_zeros(store.open_tensor(sha256))))
        except (NotFound, CorruptFile) as error:
            log.info("the zeros of a tensor are not inspected: %s", error)
        except (StoreFull, StoreUnavailable):
            records.tensors.return_uninspected(sha256)
            raise


def report_zeros(tensor: NDArray[Any]) -> tuple[ZeroReport, ...]:
    """Look for zeros that look like missing readings. A mask has none: its zeros say what is missing elsewhere."""
    if tensor.dtype.kind == "b":
        return ()
    return tuple(
        ZeroReport(**asdict(found), look_missing=found.look_missing, map=_zero_map(tensor, found.mode))
        for found in find_zero_fibres(tensor)
    )


def _zero_map(tensor: NDArray[Any], mode: int) -> ZeroMap:
    others = sorted((axis for axis in range(tensor.ndim) if axis != mode - 1), key=lambda axis: -tensor.shape[axis])
    shown = sorted(others[:2])
    steps = [1 if axis == mode - 1 else -(-length // MAX_SIDE) for axis, length in enumerate(tensor.shape)]
    thinned = tensor[tuple(slice(None, None, step) for step in steps)]
    has_reading = np.any((thinned > 0) | (thinned < 0), axis=mode - 1, keepdims=True)
    drawn = np.any(~has_reading, axis=tuple(axis for axis in range(tensor.ndim) if axis not in shown))
    return ZeroMap(
        modes=tuple(axis + 1 for axis in shown),
        steps=tuple(steps[axis] for axis in shown),
        rows=tuple(tuple(map(int, row)) for row in np.atleast_2d(drawn)),
    )


class InspectionThread(threading.Thread):
    """Inspect new tensors at intervals while a worker runs, however busy its jobs are."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(name="inspections", daemon=True)
        self._records = Records.of(configuration)
        self._store = open_store(configuration)
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            try:
                inspect_tensors(self._records, self._store)
            except (Unavailable, StoreFull, StoreUnavailable) as error:
                log.warning("new tensors are inspected later: %s", error)
            except Exception:
                log.exception("a new tensor could not be inspected")

    def end(self) -> None:
        """Stop the thread."""
        self._ended.set()
