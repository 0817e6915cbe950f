"""One reader of Redis per process for any number of subscribers; each gets what is recorded first, then live events."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis.exceptions
from anyio import to_thread

from sparse_ncp.app.streaming.recorded import EventSource, RecordedPages, page_start
from sparse_ncp.app.streaming.sse import KEEP_ALIVE, RETRY, EncodedEvent, encode_event, encode_preparation
from sparse_ncp.app.streaming.stream_limits import StreamLimits
from sparse_ncp.worker.contract import parse_event_id
from sparse_ncp.worker.errors import NotFound, Unavailable
from sparse_ncp.worker.records.events import START, EventRecords

# A new subscription joins the read after this time at the latest.
BLOCK_MILLISECONDS = 100
# Entries read at once, of each job.
BATCH = 1000
# Subscriptions that get events before other requests are served: about a millisecond.
SUBSCRIPTIONS = 200
# Pause after Redis did not answer.
RETRY_SECONDS = 1.0
# Events sent at once, which bounds the memory for a client that reads slowly.
PIECE = 100
# How often the caller of an open stream is identified again, so that a revoked key ends it. Reads a file each time.
IDENTIFY_SECONDS = 20.0
log = logging.getLogger("ncp.live")


class Subscription:
    """One client's queue of events, bounded: on overflow it is emptied, and the client reads what is recorded."""

    def __init__(self, limit: int, call_in_turn: Callable[[Callable[[], object]], None]) -> None:
        """Make a queue of at most `limit` events. `call_in_turn` wakes the client when it may send."""
        self._limit = limit
        self._call_in_turn = call_in_turn
        self._is_due = False
        self._events: deque[EncodedEvent] = deque()
        self._changed = asyncio.Event()
        self._overflowed = False
        self._waiting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def put(self, events: Sequence[EncodedEvent]) -> None:
        self._overflowed = self._overflowed or len(self._events) + len(events) > self._limit
        if self._overflowed:
            self._events.clear()
        else:
            self._events.extend(events)
        if not self._is_due:  # one wake-up sends all that has come until then
            self._is_due = True
            self._call_in_turn(self._changed.set)

    def wake(self) -> None:
        self._changed.set()

    async def get(self, seconds: float) -> list[EncodedEvent]:
        """Return the events received; an empty list after `seconds` of silence, an overflow or a wake-up."""
        loop = asyncio.get_running_loop()
        self._waiting_since = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(seconds, self._check_silence, seconds)
        await self._changed.wait()
        self._changed.clear()
        self._is_due = False
        self._overflowed = False
        events = list(self._events)
        self._events.clear()
        return events

    def _check_silence(self, seconds: float) -> None:
        """Wake the client after a silence. There is one timer, because one per event would cost more than the event."""
        loop = asyncio.get_running_loop()
        left = self._waiting_since + seconds - loop.time()
        if left <= 0:
            self.wake()
        self._timer = loop.call_later(left if left > 0 else seconds, self._check_silence, seconds)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@dataclass
class Channel:
    """A job with subscribers, and the position up to which its stream in Redis was read."""

    position: str
    subscriptions: set[Subscription] = field(default_factory=set)


class Broadcaster:
    """Read the streams of all jobs with subscribers, and pass every event to each of them."""

    def __init__(
        self, connection: redis.asyncio.Redis, events: EventRecords, buffer: int, limits: StreamLimits
    ) -> None:
        self.closed = False
        self.limits = limits
        self.pages = RecordedPages()
        self._redis = connection
        self._events = events
        self._buffer = buffer
        self._channels: dict[str, Channel] = {}
        self._preparations: str | None = None  # how far their stream was read; None before the first reading
        self._subscribed = asyncio.Event()

    @contextmanager
    def subscribe(self, job_id: str, position: str) -> Iterator[Subscription]:
        """Subscribe to the events of a job from now on.

        `position` is where to start reading if this is the only subscription to the job. Events between it and the
        first one received are recorded already.
        """
        channel = self._channels.setdefault(job_id, Channel(position))
        channel.subscriptions.add(subscription := Subscription(self._buffer, self.limits.call_in_turn))
        self._subscribed.set()
        try:
            yield subscription
        finally:
            subscription.close()
            channel.subscriptions.discard(subscription)
            if not channel.subscriptions:
                self._channels.pop(job_id, None)

    @property
    def subscribers(self) -> int:
        """The number of clients subscribed now."""
        return sum(len(channel.subscriptions) for channel in self._channels.values())

    def close(self) -> None:
        """End every stream now: the server is stopping."""
        self.closed = True
        for channel in self._channels.values():
            for subscription in channel.subscriptions:
                subscription.wake()

    async def run(self) -> None:
        """Read until cancelled. While Redis is down clients stay connected, and reading resumes where it stopped."""
        while True:
            while not self._channels:
                self._preparations = None  # out of date for the next subscriber
                self._subscribed.clear()
                await self._subscribed.wait()
            try:
                await self._read()
            except (redis.exceptions.RedisError, Unavailable) as error:
                log.warning("cannot read events: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _read(self) -> None:
        jobs = {self._events.stream_key(job_id): job_id for job_id in self._channels}
        positions: dict[Any, Any] = {key: self._channels[job_id].position for key, job_id in jobs.items()}
        preparations = self._events.preparations_key
        if self._preparations is None:
            latest: Any = await self._redis.xrevrange(preparations, count=1)
            self._preparations = latest[0][0] if latest else START
        # First: a job's preparation comes before its iterations.
        positions = {preparations: self._preparations, **positions}
        answer: Any = await self._redis.xread(positions, count=BATCH, block=BLOCK_MILLISECONDS)
        for key, entries in answer:
            if key == preparations:
                self._preparations = entries[-1][0]
                for _, entry in entries:
                    subscribed = self._channels.get(entry["id"])
                    for subscription in subscribed.subscriptions if subscribed else ():
                        subscription.put([encode_preparation(entry["payload"])])
                continue
            channel = self._channels.get(jobs[key])
            following = parse_event_id(channel.position)[0] + 1 if channel else 0
            if parse_event_id(entries[0][0])[0] > following:  # those between were moved to the store
                events = []
            elif entries[-1][1]["kind"] == "end":  # carries the job, which is read from Redis: in a thread
                events = await to_thread.run_sync(self._encode, jobs[key], entries)
            else:
                events = self._encode(jobs[key], entries)
            channel = self._channels.get(jobs[key])
            if channel is not None:
                channel.position = entries[-1][0]
                for place, subscription in enumerate(list(channel.subscriptions), start=1):
                    subscription.put(events)  # without events they read the record
                    if place % SUBSCRIPTIONS == 0:
                        await asyncio.sleep(0)

    def _encode(self, job_id: str, entries: Sequence[tuple[str, dict[str, str]]]) -> list[EncodedEvent]:
        """Encode entries; an empty list, if the job was stored or deleted, makes subscribers read the record."""
        if any(map(self._events.is_stored, (entry for _, entry in entries))):
            return []
        try:
            return [encode_event(self._events.event(job_id, entry_id, entry)) for entry_id, entry in entries]
        except NotFound:
            return []


class EventStream:
    """The events of a job for one client. Duplicates are dropped: ids only grow."""

    def __init__(
        self,
        source: EventSource,
        broadcaster: Broadcaster,
        job_id: str,
        after: str,
        keep_alive_seconds: float,
        is_allowed: Callable[[], bool],
    ) -> None:
        """Prepare the stream. `is_allowed` returns whether the caller still has access, and may block."""
        self._source = source
        self._broadcaster = broadcaster
        self._job_id = job_id
        self._position = after
        self._place = parse_event_id(after)
        self._silence_seconds = min(keep_alive_seconds, IDENTIFY_SECONDS)
        self._is_allowed = is_allowed
        self._identified_at = time.monotonic()
        self._ended = False

    async def recorded(self) -> AsyncIterator[bytes]:
        """Yield what is recorded by now, and end."""
        yield RETRY
        async for text in self._recorded():
            yield text
        yield await to_thread.run_sync(self._preparation)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield recorded events, then live ones.

        Recorded events are read before subscribing, so that they do not fill the queue, once more after subscribing,
        and after every silence: an event that was missed is late, but not lost.
        """
        yield RETRY
        async for text in self._recorded():
            yield text
        with self._broadcaster.subscribe(self._job_id, self._position) as subscription:
            events: list[EncodedEvent] = []
            while await self._goes_on():
                if events:
                    for start in range(0, len(events), PIECE):
                        if start:
                            await self._broadcaster.limits.turn()
                        yield self._unseen(events[start : start + PIECE])
                else:
                    await self._broadcaster.limits.turn()
                    yield KEEP_ALIVE
                    async for text in self._recorded():
                        yield text
                    yield await to_thread.run_sync(self._preparation)
                events = [] if self._ended else await subscription.get(self._silence_seconds)

    async def _goes_on(self) -> bool:
        if self._ended or self._broadcaster.closed:
            return False
        now = time.monotonic()
        if now - self._identified_at < IDENTIFY_SECONDS:
            return True
        self._identified_at = now
        return await to_thread.run_sync(self._is_allowed)

    async def _recorded(self) -> AsyncIterator[bytes]:
        start = page_start(self._position)
        while await self._goes_on():
            page = await self._broadcaster.pages.read(self._source, self._job_id, start)
            await self._broadcaster.limits.turn()
            text = self._unseen(page.events)
            if text:
                yield text
            if page.next is None:
                self._ended = self._ended or page.is_over
                return
            start = page.next

    def _preparation(self) -> bytes:
        """Return the progress of preparing the first sweep; nothing outside of that phase or while Redis is down."""
        try:
            found = None if self._ended else self._source.preparing(self._job_id)
        except Unavailable as error:
            log.warning("cannot read events: %s", error)
            return b""
        return b"" if found is None else self._unseen([encode_preparation(found.model_dump_json())])

    def _unseen(self, events: Sequence[EncodedEvent]) -> bytes:
        """Return the events not sent yet. Unrecorded ones get the last recorded id, so that clients can resume."""
        texts = []
        for event in events:
            if event.place is None:
                texts.append(b"id: " + self._position.encode() + b"\n" + event.text)
            elif event.place > self._place:
                texts.append(event.text)
                self._position, self._place, self._ended = event.id, event.place, event.is_end
        return b"".join(texts)
