"""One reader of Redis per process, fanned out: a thousand watching clients cost one blocking read, not a thousand."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio
import redis.exceptions
from anyio import to_thread

from app.wire import Told, told
from worker.errors import NotFound, Unavailable
from worker.records import Records

# A job that somebody begins to watch joins the read after this time at the latest.
BLOCK_MILLISECONDS = 100
BATCH = 1000
PAUSE_SECONDS = 1.0
log = logging.getLogger("ncp.live")


class Subscription:
    """One client's share: a bounded queue. When it overflows it is emptied, and the client reads the record instead."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[Told] = deque()
        self._news = asyncio.Event()
        self._behind = False
        self._waiting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def offer(self, events: Sequence[Told]) -> None:
        self._behind = self._behind or len(self._events) + len(events) > self._limit
        if self._behind:
            self._events.clear()
        else:
            self._events.extend(events)
        self._news.set()

    def wake(self) -> None:
        self._news.set()

    async def take(self, seconds: float) -> list[Told]:
        """What has come. Nothing after a silence, an overflow or a wake-up: then the record knows more."""
        loop = asyncio.get_running_loop()
        self._waiting_since = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(seconds, self._look, seconds)
        await self._news.wait()
        self._news.clear()
        self._behind = False
        taken = list(self._events)
        self._events.clear()
        return taken

    def _look(self, seconds: float) -> None:
        """One timer that looks whether it was silent: setting one for every event would cost more than the event."""
        loop = asyncio.get_running_loop()
        left = self._waiting_since + seconds - loop.time()
        if left <= 0:
            self.wake()
        self._timer = loop.call_later(left if left > 0 else seconds, self._look, seconds)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@dataclass
class Watched:
    """A job that somebody watches: how far its stream was read, and who wants it."""

    position: str
    subscriptions: set[Subscription] = field(default_factory=set)


class Live:
    """The events of all watched jobs, as they come."""

    def __init__(self, connection: redis.asyncio.Redis, records: Records, buffer: int) -> None:
        self.closed = False
        self._redis = connection
        self._records = records
        self._buffer = buffer
        self._jobs: dict[str, Watched] = {}
        self._wanted = asyncio.Event()

    @contextmanager
    def watch(self, job_id: str, position: str) -> Iterator[Subscription]:
        """Events from now on. `position` is where to begin if nobody else watches the job; what lies between it and
        the first event offered is in the record."""
        watched = self._jobs.setdefault(job_id, Watched(position))
        watched.subscriptions.add(subscription := Subscription(self._buffer))
        self._wanted.set()
        try:
            yield subscription
        finally:
            subscription.close()
            watched.subscriptions.discard(subscription)
            if not watched.subscriptions:
                self._jobs.pop(job_id, None)

    @property
    def watched(self) -> int:
        """How many clients are watching."""
        return sum(len(watched.subscriptions) for watched in self._jobs.values())

    def close(self) -> None:
        """Let every stream end now: the server is going down."""
        self.closed = True
        for watched in self._jobs.values():
            for subscription in watched.subscriptions:
                subscription.wake()

    async def run(self) -> None:
        """Read until cancelled. While Redis is away the clients stay; the read goes on where it was."""
        while True:
            await self._until_wanted()
            try:
                await self._read()
            except (redis.exceptions.RedisError, Unavailable) as error:
                log.warning("cannot read events: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _until_wanted(self) -> None:
        while not self._jobs:
            self._wanted.clear()
            await self._wanted.wait()

    async def _read(self) -> None:
        jobs = {self._records.stream_key(job_id): job_id for job_id in self._jobs}
        positions: dict[Any, Any] = {key: self._jobs[job_id].position for key, job_id in jobs.items()}
        answer: Any = await self._redis.xread(positions, count=BATCH, block=BLOCK_MILLISECONDS)
        for key, entries in answer:
            if entries[-1][1]["kind"] == "end":  # carries the job, which is asked of Redis: in a thread
                events = await to_thread.run_sync(self._events, jobs[key], entries)
            else:
                events = self._events(jobs[key], entries)
            self._hand_out(jobs[key], entries[-1][0], events)

    def _events(self, job_id: str, entries: Sequence[tuple[str, dict[str, str]]]) -> list[Told]:
        try:
            return [told(self._records.event(job_id, entry_id, entry)) for entry_id, entry in entries]
        except NotFound:
            return []

    def _hand_out(self, job_id: str, position: str, events: Sequence[Told]) -> None:
        """Without events the job has been deleted: its watchers look at the record, and find that out."""
        watched = self._jobs.get(job_id)
        if watched is None:
            return
        watched.position = position
        for subscription in watched.subscriptions:
            subscription.offer(events)
