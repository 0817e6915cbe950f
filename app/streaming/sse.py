"""Server-sent events: an event as bytes, and the response that carries them."""

from collections.abc import AsyncIterable
from contextlib import AbstractContextManager
from typing import NamedTuple

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sparse_ncp.worker.contract import Event, parse_event_id

RETRY = b"retry: 1000\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EncodedEvent(NamedTuple):
    """An event as it is sent, encoded once for all subscribers: for a thousand clients that is most of the work.

    An event without a place is not recorded: only connected clients get it, under the id of the event before it.
    """

    place: tuple[int, int] | None
    id: str
    is_end: bool
    text: bytes


def encode_event(event: Event) -> EncodedEvent:
    """Encode an event, whose payload is JSON on one line. (fastapi.sse.format_sse_event writes the id last.)"""
    text = f"id: {event.id}\nevent: {event.kind}\ndata: {event.payload}\n\n".encode()
    return EncodedEvent(parse_event_id(event.id), event.id, event.kind == "end", text)


def encode_preparation(preparation: str) -> EncodedEvent:
    """Encode the progress of preparing the first sweep, given as JSON; the id is added later."""
    return EncodedEvent(None, "", False, f"event: preparing\ndata: {preparation}\n\n".encode())


class EventSourceResponse(StreamingResponse):
    """A response that is never cached or buffered. HEAD is answered at once: the body would last as long as the job."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterable[bytes], counted: AbstractContextManager[None]) -> None:
        """Prepare the response. `counted` lasts as long as the stream, and may refuse it."""
        super().__init__(events, headers=HEADERS)
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await Response(headers=dict(self.headers))(scope, receive, send)
        else:
            with self._counted:
                await super().__call__(scope, receive, send)
