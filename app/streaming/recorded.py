"""Recorded events in pages that all clients share: each page is read and encoded once for all of them."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from anyio import to_thread

from sparse_ncp.app.streaming.sse import EncodedEvent, encode_event
from sparse_ncp.worker.contract import Event, Preparation, parse_event_id
from sparse_ncp.worker.errors import NotFound, Unavailable

# Iterations of a page. A client that is slow to read holds one page in memory.
PAGE = 100
# Changes of state that usually fit on a page besides them.
CHANGES = 20
# Memory of the pages that are kept.
MAX_BYTES = 32 << 20
log = logging.getLogger("ncp.live")


class EventSource(Protocol):
    """A source of events: jobs or studies."""

    def has_ended(self, id: str) -> bool: ...

    def events_after(self, id: str, event_id: str | None = None, count: int = 1000) -> list[Event]:
        """Return at most `count` events after the one with this id, in order and each exactly once."""

    def preparing(self, id: str) -> Preparation | None:
        """Return the progress of preparing the first sweep, or None outside of that phase."""


class RecordedPage(NamedTuple):
    """Consecutive events.

    Attributes
    ----------
    events : sequence of EncodedEvent
        The events, in order.
    next : str or None
        The id after which the next page begins; None if these are the last events so far.
    is_over : bool
        Whether no event will follow.
    """

    events: Sequence[EncodedEvent]
    next: str | None
    is_over: bool


@dataclass
class _Reading:
    """A page that is being read. Once that has begun, it may lack what is recorded meanwhile."""

    task: "asyncio.Task[RecordedPage] | None" = None
    has_begun: bool = False


class RecordedPages:
    """Pages of recorded events. Those that cannot change are kept, up to a limit of memory."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], RecordedPage] = OrderedDict()
        self._nbytes = 0
        self._readings: dict[tuple[str, str], _Reading] = {}

    async def read(self, source: EventSource, id: str, start: str) -> RecordedPage:
        """Return the page that begins after an event; it has all that was recorded before this call.

        Clients that wait for the same page share one reading of it.
        """
        name = (id, start)
        page = self._kept.get(name)
        if page is not None:
            self._kept.move_to_end(name)
            return page
        reading = self._readings.get(name)
        if reading is None or reading.has_begun:
            earlier, reading = reading, _Reading()
            reading.task = asyncio.create_task(self._read(reading, earlier, source, name))
            self._readings[name] = reading
        assert reading.task is not None
        return await asyncio.shield(reading.task)

    async def _read(
        self, reading: _Reading, earlier: _Reading | None, source: EventSource, name: tuple[str, str]
    ) -> RecordedPage:
        if earlier is not None and earlier.task is not None:
            await asyncio.wait({earlier.task})
        reading.has_begun = True
        try:
            page = await to_thread.run_sync(_read_page, source, *name)
        finally:
            if self._readings.get(name) is reading:
                del self._readings[name]
        if page.next is not None and name not in self._kept:
            self._kept[name] = page
            self._nbytes += _size(page)
            while self._nbytes > MAX_BYTES:
                self._nbytes -= _size(self._kept.popitem(last=False)[1])
        return page


def page_start(event_id: str) -> str:
    """Return where the page begins that an event is on: pages begin at the same places for all clients."""
    return f"{parse_event_id(event_id)[0] // PAGE * PAGE}-0"


def _read_page(source: EventSource, id: str, start: str) -> RecordedPage:
    """Read a page; an empty one while Redis is down, and tried again after the next silence."""
    end = (parse_event_id(start)[0] // PAGE + 1) * PAGE
    try:
        is_over = source.has_ended(id)  # asked first: then all events of an ended job are recorded
        found = source.events_after(id, start, PAGE + CHANGES)
        events = [event for event in found if parse_event_id(event.id) <= (end, 0)]
        encoded = [encode_event(event) for event in events]
    except Unavailable as error:
        log.warning("cannot read events: %s", error)
        return RecordedPage((), None, False)
    except NotFound:
        return RecordedPage((), None, True)
    if len(events) < len(found):
        return RecordedPage(encoded, f"{end}-0", False)
    if len(found) == PAGE + CHANGES:
        return RecordedPage(encoded, found[-1].id, False)
    return RecordedPage(encoded, None, is_over)


def _size(page: RecordedPage) -> int:
    return sum(len(event.text) for event in page.events)
