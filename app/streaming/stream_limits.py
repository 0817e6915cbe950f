"""Limits of event streams: how many may be open, and how much of the event loop's time they take at once."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparse_ncp.app.errors.exceptions import TooManyStreams

# Streams that send in one round of the event loop: half a millisecond, then other requests are served.
BURST = 8
# Pause between two rounds while streams wait to send, so that the threads of other requests can run.
PAUSE_SECONDS = 0.002


class StreamLimits:
    """Counts the open streams of each owner, and lets them send in turn."""

    def __init__(self, count: int, count_per_owner: int) -> None:
        self._count = count
        self._count_per_owner = count_per_owner
        self._open = Counter[str]()
        self._waiting: deque[Callable[[], object]] = deque()
        self._left = BURST
        self._is_refilling = False

    @contextmanager
    def open(self, owner: str) -> Iterator[None]:
        """Count a stream of this owner while the context lasts; raise TooManyStreams if there are too many."""
        if self._open[owner] >= self._count_per_owner:
            raise TooManyStreams(f"you have {self._open[owner]} event streams open, which is your limit")
        if self._open.total() >= self._count:
            raise TooManyStreams(f"the server has {self._count} event streams open, which is its limit")
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]

    def call_in_turn(self, callback: Callable[[], object]) -> None:
        """Call a function that makes a stream send its next piece, now or after the streams that wait already."""
        if not self._is_refilling:
            self._is_refilling = True
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._refill)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            callback()
        else:
            self._waiting.append(callback)

    async def turn(self) -> None:
        """Wait until a stream may send its next piece."""
        turn = asyncio.Event()
        self.call_in_turn(turn.set)
        await turn.wait()

    def _refill(self) -> None:
        self._left = BURST
        while self._waiting and self._left > 0:
            self._waiting.popleft()()
            self._left -= 1
        self._is_refilling = self._left < BURST
        if self._is_refilling:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._refill)
