"""Events as they go over the wire."""

from typing import NamedTuple

from worker.contract import Event
from worker.event_records import parse_event_id


class Told(NamedTuple):
    """An event as it is sent, made once for all who watch: for a thousand clients that is most of the work."""

    place: tuple[int, int]
    id: str
    is_end: bool
    text: bytes


def told(event: Event) -> Told:
    """The payload is JSON on one line."""
    text = f"id: {event.id}\nevent: {event.kind}\ndata: {event.payload}\n\n".encode()
    return Told(parse_event_id(event.id), event.id, event.kind == "end", text)
