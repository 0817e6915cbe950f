"""A thread pool and a limit on BLAS threads that never change the bits.

Work is cut by its shape alone, never by the number of threads; every piece is one single-threaded call that writes
its own part of the output. So the same input gives the same bits for any number of threads. Loads no numpy: a process
that only counts its cores must start fast.
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

# Of a thread's share of the work: what it takes at first, and then.
QUARTERS = (3, 1)

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class _SingleThreadedBlas:
    """One limit for the whole process: the first solver to enter sets it, the last to leave lifts it."""

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
    """Else OpenBLAS would obey only the thread that limited it first, for as long as that one lives, and no other."""
    OpenBLASController.clear_controlling_thread(force=True)


@cache
def _blas() -> ThreadpoolController:
    """Every BLAS of the process: numpy's, and scipy's own. Only what is loaded is found, so load them first."""
    import scipy.linalg  # noqa: F401

    return ThreadpoolController().select(user_api="blas")


_limit = _SingleThreadedBlas()


def single_threaded_blas() -> AbstractContextManager[None]:
    """Threaded BLAS cuts a product by its thread count, and the cut shows in the last bits."""
    return _limit


def available_cores() -> int:
    """Cores this process may use: a container or `taskset` often grants fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def split_evenly(length: int, pieces: int) -> Iterator[slice]:
    """Cut `range(length)` into at most `pieces` nearly equal slices."""
    pieces = max(1, min(pieces, length))
    edges = [length * piece // pieces for piece in range(pieces + 1)]
    return (slice(start, stop) for start, stop in pairwise(edges))


def split_decreasing(length: int, threads: int, unit: int) -> Iterator[slice]:
    """Cut `range(length)` at multiples of `unit` into large slices for all threads, then smaller ones.

    Large ones waste least at their edges; with small ones at the end, no thread waits long for the last.
    """
    shares = accumulate(share for share in QUARTERS for _ in range(threads))
    edges = {min(length, round(length * share / (4 * threads * unit)) * unit) for share in shares}
    return (slice(start, stop) for start, stop in pairwise(sorted(edges | {0, length})))


class Affinity:
    """Keeps the threads of a pool off the core of the caller, who works too.

    A virtual machine's core that went to sleep counts as taken by the host, so Linux wakes a thread on the core that
    calls it: both would take turns on one, milliseconds each, with the other idle.
    """

    def __init__(self) -> None:
        self._threads: list[int] = []
        self._placed: tuple[int, int] | None = None  # the caller's core, and how many threads were kept off it

    def add_this_thread(self) -> None:
        self._threads.append(get_native_id())

    def leave_core_to_caller(self) -> None:
        """Where the system tells the core and lets threads be bound; elsewhere they stay where it puts them."""
        if not hasattr(os, "sched_setaffinity"):
            return
        core, count = _libc().sched_getcpu(), len(self._threads)
        if (core, count) == self._placed:
            return
        self._placed = core, count
        cores = os.sched_getaffinity(0)
        if count < len(cores):  # else some thread has to share a core, and may find out which
            cores -= {core}
        with suppress(OSError):  # refused in a sandbox, or the cores have changed
            for thread in self._threads[:count]:
                os.sched_setaffinity(thread, cores)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


class Threads:
    """A pool of `count` threads; one thread means the caller's own."""

    def __init__(self, count: int | None = None) -> None:
        self.count = available_cores() if count is None else count
        if self.count < 1:
            raise InvalidInput("threads", f"is {count}", "give 1 or more, or leave it out for all cores")
        self._affinity = Affinity()
        begin = self._affinity.add_this_thread
        self._pool = ThreadPoolExecutor(self.count - 1, "solver", begin) if self.count > 1 else None

    def each(self, work: Callable[[Item], Outcome], items: Iterable[Item]) -> list[Outcome]:
        """The outcomes in the order of the items, whichever thread finished first."""
        items = list(items)
        if self._pool is None or len(items) == 1:  # waking a thread for a single item only costs time
            return [work(item) for item in items]
        outcomes: dict[int, Outcome] = {}
        # At its end the iterator lets go of what the work knows; a thread that wakes late still holds the iterator.
        tasks = iter([(place, partial(work, item)) for place, item in enumerate(items)])

        def work_through() -> None:
            for place, task in tasks:
                outcomes[place] = task()

        self._affinity.leave_core_to_caller()
        # The caller works too: one thread less to wake, and none to wait for while it could compute.
        others = [self._pool.submit(work_through) for _ in range(min(self.count, len(items)) - 1)]
        try:
            work_through()
        finally:  # a thread that has not started yet is not needed; the others are waited for, whatever happened
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
