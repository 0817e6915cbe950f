"""One client's way through a job's events: first what is recorded, then what comes, each event once."""

import logging
from collections.abc import AsyncIterator, Sequence

from anyio import to_thread

from app.live import Live
from worker.contract import Event
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
        self._keep_alive_seconds = keep_alive_seconds
        self._ended = False

    async def stream(self) -> AsyncIterator[bytes]:
        """The history before watching, so that it does not fill the queue; then, while watching, what was recorded in
        between, and again after every silence: an event that went astray is late, not lost."""
        yield RETRY
        async for text in self._recorded():
            yield text
        with self._live.watch(self._job_id, self._position) as subscription:
            events: list[Event] = []
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

    def _next_page(self) -> Sequence[Event]:
        """Nothing while Redis is away: the client stays, the next silence asks again."""
        try:
            over = self._records.has_ended(self._job_id)  # asked first: what it announces is then in the record
            page = self._records.events_after(self._job_id, self._position, PAGE)
            self._ended = over and not page
            return page
        except Unavailable as error:
            log.warning("cannot read events: %s", error)
            return []
        except NotFound:
            self._ended = True
            return []

    def _unseen(self, events: Sequence[Event]) -> bytes:
        fresh = [event for event in events if parse_event_id(event.id) > parse_event_id(self._position)]
        if fresh:
            self._position = fresh[-1].id
            self._ended = fresh[-1].kind == "end"
        return b"".join(map(wire, fresh))


def wire(event: Event) -> bytes:
    """The event as SSE has it. The payload is JSON on one line."""
    return f"id: {event.id}\nevent: {event.kind}\ndata: {event.payload}\n\n".encode()
