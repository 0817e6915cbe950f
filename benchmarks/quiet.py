"""Detect other load on the machine, so that a disturbed round can be repeated."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sparse_ncp.solvers.tensor.threads import available_cores, single_threaded_blas

# A calibration slower than this times the fastest one seen means that the cores were shared: that doubles it. On a
# virtual machine left alone, single times scatter by more than that, the fastest of five by a tenth.
DISTURBED, TIMES = 1.4, 5
# How often a waiting benchmark looks again.
PAUSE_SECONDS = 0.1


class Calibration:
    """Time a fixed piece of work of a few milliseconds on every core; its fastest time is the reference."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(available_cores())
        self._work = [np.random.default_rng(0).random((400, 400)) for _ in range(available_cores())]
        self.fastest = min(self._seconds() for _ in range(50))

    def wait(self, seconds: float) -> float:
        """Wait for a quiet moment, up to a limit, and return the seconds waited."""
        started = time.perf_counter()
        while not self.is_quiet() and time.perf_counter() - started < seconds:
            time.sleep(PAUSE_SECONDS)
        return time.perf_counter() - started

    def is_quiet(self) -> bool:
        taken = min(self._seconds() for _ in range(TIMES))
        self.fastest = min(self.fastest, taken)
        return taken < DISTURBED * self.fastest

    def _seconds(self) -> float:
        with single_threaded_blas():
            return seconds_of(lambda: list(self._pool.map(lambda A: A @ A, self._work)))


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
