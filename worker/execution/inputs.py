"""Inputs of an attempt: the tensor, its mask, and factors of other jobs, read with retries while storage is down."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.runtime import Array, Booleans, Float64, Scan
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim
from sparse_ncp.worker.errors import StoreFull, StoreUnavailable
from sparse_ncp.worker.store.store import Store

Answer = TypeVar("Answer")
log = logging.getLogger("ncp.job")


class StorageRetry:
    """Repeat a call while the disk is full or unavailable, for hours if necessary.

    Parameters
    ----------
    job_id : str
        The job that waits, for the log.
    must_stop : callable
        Called after every failure. Once it returns True, the error is raised.
    pause_seconds : float
        Time between two attempts.
    """

    def __init__(self, job_id: str, must_stop: Callable[[], bool], pause_seconds: float) -> None:
        self._job_id = job_id
        self._must_stop = must_stop
        self._pause_seconds = pause_seconds

    def __call__(self, call: Callable[[], Answer]) -> Answer:
        while True:
            try:
                return call()
            except (StoreFull, StoreUnavailable) as error:
                if self._must_stop():
                    raise
                log.warning("job %s: waiting for storage: %s", self._job_id, error)
                time.sleep(self._pause_seconds)


class Inputs:
    """Everything that an attempt reads before its first sweep."""

    def __init__(self, claim: Claim, store: Store, configuration: Configuration, retry: StorageRetry) -> None:
        self._claim = claim
        self._store = store
        self._configuration = configuration
        self._retry = retry

    def verify(self, on_progress: Callable[[float], None]) -> Scan | None:
        """Check the bytes of the tensor and of its mask against their SHA-256.

        Parameters
        ----------
        on_progress : callable
            Called with the fraction of a file that has been read.

        Returns
        -------
        Scan or None
            Statistics of the tensor's entries, if they are known from this or an earlier check.
        """
        claim = self._claim
        checked = [claim.sha256] if claim.mask_sha256 is None else [claim.sha256, claim.mask_sha256]
        threads, valid_seconds = self._configuration.threads_per_job, 86_400 * self._configuration.verify_days
        scans = []
        for sha256 in checked:
            on_progress(0.0)
            scans.append(self._retry(partial(self._store.verify_tensor, sha256, threads, on_progress, valid_seconds)))
        return scans[0]

    def open_tensor(self) -> NDArray[Any]:
        """Open the tensor as a read-only memory map."""
        return self._retry(lambda: self._store.open_tensor(self._claim.sha256))

    def mask(self) -> Booleans | None:
        """Open the mask of observed entries; None if the job has none."""
        sha256 = self._claim.mask_sha256
        return None if sha256 is None else self._retry(lambda: self._store.open_tensor(sha256))

    def fixed(self) -> dict[int, Array] | None:
        """Read the factors that stay fixed, by mode; None if all are fitted.

        Their job has ended, and it cannot be deleted while this one is live.
        """
        fixed = self._claim.fixed
        if fixed is None:
            return None
        factors = self._retry(lambda: self._store.job(fixed.job_id).factors())
        return {mode: factors[mode - 1] for mode in fixed.modes}

    def initial(self) -> list[Array] | None:
        """Read the factors of the job to start from; None without one.

        They are copied once, so that a later attempt starts from the same factors even if that job still runs.
        """
        other = self._claim.initial_job_id
        if other is None:
            return None
        return self._retry(lambda: self._store.job(self._claim.job_id).freeze_initial(self._store.job(other)))

    def reference(self) -> Float64 | None:
        """Read the true factor that a study compares with; None without one."""
        reference = self._claim.reference
        if reference is None:
            return None
        return np.asarray(self._retry(lambda: self._store.open_tensor(reference.sha256)), np.float64)
