"""One client's way through a job's events: first what is recorded, then what comes, each event once."""

import logging
from collections.abc import AsyncIterator, Sequence

from anyio import to_thread

from app.live import Live
from app.wire import Told, told
from worker.errors import NotFound, Unavailable
from worker.event_records import parse_event_id
from worker.records import Records

PAGE = 500
RETRY = b"retry: 1000\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
log = logging.getLogger("ncp.follow")


class Follower:
    """Where a client is in the events of a job. Whatever arrives twice is sent once: ids only grow."""

    def __init__(self, records: Records, live: Live, job_id: str, after: str, keep_alive_seconds: float) -> None:
        self._records = records
        self._live = live
        self._job_id = job_id
        self._position = after
        self._place = parse_event_id(after)
        self._keep_alive_seconds = keep_alive_seconds
        self._ended = False

    async def stream(self) -> AsyncIterator[bytes]:
        """The history before watching, so that it does not fill the queue; then, while watching, what was recorded in
        between, and again after every silence: an event that went astray is late, not lost."""
        yield RETRY
        async for text in self._recorded():
            yield text
        with self._live.watch(self._job_id, self._position) as subscription:
            events: list[Told] = []
            while not (self._ended or self._live.closed):
                if events:
                    yield self._unseen(events)
                else:
                    yield KEEP_ALIVE
                    async for text in self._recorded():
                        yield text
                events = [] if self._ended else await subscription.take(self._keep_alive_seconds)

    async def _recorded(self) -> AsyncIterator[bytes]:
        while not (self._ended or self._live.closed):
            page = await to_thread.run_sync(self._next_page)
            if not page:
                return
            yield self._unseen(page)

    def _next_page(self) -> Sequence[Told]:
        """Nothing while Redis is away: the client stays, the next silence asks again."""
        try:
            over = self._records.has_ended(self._job_id)  # asked first: what it announces is then in the record
            page = [told(event) for event in self._records.events_after(self._job_id, self._position, PAGE)]
            self._ended = over and not page
            return page
        except Unavailable as error:
            log.warning("cannot read events: %s", error)
            return []
        except NotFound:
            self._ended = True
            return []

    def _unseen(self, events: Sequence[Told]) -> bytes:
        fresh = [event for event in events if event.place > self._place]
        if fresh:
            last = fresh[-1]
            self._position, self._place, self._ended = last.id, last.place, last.is_end
        return b"".join([event.text for event in fresh])
