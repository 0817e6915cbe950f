"""A fair queue: a few requests run at once, waiting owners take turns, and the number that may wait is bounded."""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sparse_ncp.worker.errors import RenderingRefused

# Bounds of Retry-After, in seconds.
SHORTEST_WAIT, LONGEST_WAIT = 1, 60
# Weight of the last duration in the running mean.
LAST = 0.2


class FairQueue:
    """Run a few requests at once. If that is more than one, an owner gets at most all but one of the places.

    Parameters
    ----------
    count : int
        Requests that run at once.
    queue, queue_per_owner : int
        Requests that may wait, of all owners and of one owner.
    wait_seconds : float
        Longest wait for a place.
    """

    def __init__(self, count: int, queue: int, queue_per_owner: int, wait_seconds: float) -> None:
        self._count = count
        self._count_per_owner = max(1, count - 1)
        self._queue = queue
        self._queue_per_owner = queue_per_owner
        self._wait_seconds = wait_seconds
        self._taken = Counter[str]()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the owner whose turn it is comes first
        self._mean_seconds = 1.0

    @property
    def taken(self) -> int:
        """The number of places that are taken."""
        return self._taken.total()

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def place(self, owner: str) -> AsyncIterator[None]:
        """Wait for a place, and keep it until the context ends.

        Raises
        ------
        RenderingRefused
            If too many requests wait already, or no place became free in time.
        """
        await self._take(owner)
        started = time.monotonic()
        try:
            yield
        finally:
            self._mean_seconds += LAST * (time.monotonic() - started - self._mean_seconds)
            self._give_back(owner)

    async def _take(self, owner: str) -> None:
        own = self._waiting.get(owner, ())
        if not own and self._is_free_for(owner):
            self._taken[owner] += 1
            return
        if len(own) >= self._queue_per_owner:
            raise RenderingRefused(
                f"{len(own)} of your requests are waiting already, which is the limit", self.expected_wait(len(own))
            )
        if self.waiting >= self._queue:
            raise RenderingRefused(
                f"{self.waiting} requests are waiting already, which is the limit", self.expected_wait(self.waiting)
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await asyncio.wait_for(turn, self._wait_seconds)
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it got the place in the meantime
                self._give_back(owner)
            elif owner in self._waiting and turn in self._waiting[owner]:
                self._waiting[owner].remove(turn)
                if not self._waiting[owner]:
                    del self._waiting[owner]
            if isinstance(error, TimeoutError):
                waited = f"no place became free in {self._wait_seconds:g} s"
                raise RenderingRefused(waited, self.expected_wait(self.waiting)) from error
            raise

    def _is_free_for(self, owner: str) -> bool:
        return self.taken < self._count and self._taken[owner] < self._count_per_owner

    def _give_back(self, owner: str) -> None:
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        for next_owner in list(self._waiting):
            while self._is_free_for(next_owner) and next_owner in self._waiting:
                turns = self._waiting.pop(next_owner)
                turn = turns.popleft()
                if turns:
                    self._waiting[next_owner] = turns  # behind all others
                if not turn.done():
                    self._taken[next_owner] += 1
                    turn.set_result(None)
                    break

    def expected_wait(self, before: int = 0) -> int:
        """Return the seconds until a place is probably free, if `before` requests are served first."""
        seconds = math.ceil(self._mean_seconds * (before + 1) / self._count)
        return min(max(seconds, SHORTEST_WAIT), LONGEST_WAIT)
