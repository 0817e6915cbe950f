"""A thread pool and a limit on BLAS threads, neither of which changes the bits of a result.

Work is split by shape alone, never by the number of threads, and each piece is a single-threaded call that writes its
own part of the output. The same input therefore gives the same bits for any number of threads. This module does not
import numpy: a process that only counts its cores should start quickly.
"""

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from itertools import accumulate, pairwise
from threading import Lock, get_native_id
from types import TracebackType
from typing import TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

from sparse_ncp.solvers.errors import InvalidInput

# Quarters of its share of the work that a thread takes first, and then.
QUARTERS = (3, 1)

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class _SingleThreadedBlas:
    """One limit for the whole process: the first solver to enter sets it, the last one to leave restores it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                _clear_controlling_thread()
                self._limit = _blas().limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                _clear_controlling_thread()
                self._limit.restore_original_limits()
                _clear_controlling_thread()  # no thread keeps it


def _clear_controlling_thread() -> None:
    """Let other threads change the limit: OpenBLAS otherwise obeys only the thread that set it first."""
    OpenBLASController.clear_controlling_thread(force=True)


@cache
def _blas() -> ThreadpoolController:
    """Find every BLAS of the process, numpy's and scipy's own; only loaded libraries are found, so load them first."""
    import scipy.linalg  # noqa: F401

    return ThreadpoolController().select(user_api="blas")


_limit = _SingleThreadedBlas()


def single_threaded_blas() -> AbstractContextManager[None]:
    """Limit BLAS to one thread: with more, it splits products by their number, which changes the last bits."""
    return _limit


def available_cores() -> int:
    """Return how many cores this process may use.

    A container or `taskset` often grants fewer than the machine has.

    Returns
    -------
    int
        At least 1.

    Examples
    --------
    >>> from sparse_ncp import available_cores
    >>> available_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def split_evenly(length: int, pieces: int) -> Iterator[slice]:
    """Split `range(length)` into at most `pieces` nearly equal slices."""
    pieces = max(1, min(pieces, length))
    edges = [length * piece // pieces for piece in range(pieces + 1)]
    return (slice(start, stop) for start, stop in pairwise(edges))


def split_decreasing(length: int, threads: int, unit: int) -> Iterator[slice]:
    """Split `range(length)` at multiples of `unit` into one large slice per thread, then one small slice per thread.

    Large slices waste least at their edges; with small ones at the end, no thread waits long for the last one.
    """
    shares = accumulate(share for share in QUARTERS for _ in range(threads))
    edges = {min(length, round(length * share / (4 * threads * unit)) * unit) for share in shares}
    return (slice(start, stop) for start, stop in pairwise(sorted(edges | {0, length})))


class Affinity:
    """Keep the threads of a pool off the core of the calling thread, which does its share of the work.

    An idle core of a virtual machine looks busy to Linux, so a thread is woken on the core of the thread that wakes it:
    both would then take turns on one core, milliseconds each, while the other is idle.
    """

    def __init__(self) -> None:
        self._threads: list[int] = []
        self._placed: tuple[int, int] | None = None  # the caller's core, and how many threads were kept off it

    def add_this_thread(self) -> None:
        self._threads.append(get_native_id())

    def leave_core_to_caller(self) -> None:
        """Pin the threads to the other cores, if the system supports it."""
        if not hasattr(os, "sched_setaffinity"):
            return
        core, count = _libc().sched_getcpu(), len(self._threads)
        if (core, count) == self._placed:
            return
        self._placed = core, count
        cores = os.sched_getaffinity(0)
        if count < len(cores):  # otherwise some thread has to share a core, and the system decides which
            cores -= {core}
        with suppress(OSError):  # refused in a sandbox, or the cores have changed
            for thread in self._threads[:count]:
                os.sched_setaffinity(thread, cores)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


class Threads:
    """A pool of `count` threads, including the calling one."""

    def __init__(self, count: int | None = None) -> None:
        self.count = available_cores() if count is None else count
        if self.count < 1:
            raise InvalidInput("threads", f"is {count}", "give 1 or more, or leave it out for all cores")
        self._affinity = Affinity()
        begin = self._affinity.add_this_thread
        self._pool = ThreadPoolExecutor(self.count - 1, "solver", begin) if self.count > 1 else None

    def each(self, work: Callable[[Item], Outcome], items: Iterable[Item]) -> list[Outcome]:
        """Return the outcomes in the order of the items, whichever thread finished first."""
        items = list(items)
        if self._pool is None or len(items) == 1:  # not worth waking a thread for
            return [work(item) for item in items]
        outcomes: dict[int, Outcome] = {}
        # An exhausted iterator releases the work; a thread that wakes up late still holds the iterator.
        tasks = iter([(place, partial(work, item)) for place, item in enumerate(items)])

        def work_through() -> None:
            for place, task in tasks:
                outcomes[place] = task()

        self._affinity.leave_core_to_caller()
        # The calling thread works too: one thread less to wake, and no waiting while it could compute.
        others = [self._pool.submit(work_through) for _ in range(min(self.count, len(items)) - 1)]
        try:
            work_through()
        finally:  # cancel threads that have not started; always wait for the others
            errors = [other.exception() for other in others if not other.cancel()]
        for error in filter(None, errors):
            raise error
        return [outcomes.pop(place) for place in range(len(items))]

    def __enter__(self) -> "Threads":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()
