"""Server-sent events of a job or a study, each once and in order, across reconnections."""

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ncp_client.http.connection import Connection, pauses
from ncp_client.http.errors import RateLimited, ServerUnavailable

# The server sends comments on a quiet stream; a stream that is silent for longer is dead.
MAX_SILENCE_SECONDS = 90.0
# How long to reconnect while the server is unavailable.
PATIENCE_SECONDS = 600.0


# If too many streams are open: the interval of polling, and the time until the next attempt to open a stream.
POLL_SECONDS = 2.0
POLLING_SECONDS = 30.0
TOO_MANY_STREAMS = "too-many-streams"


class Event(NamedTuple):
    """One event with its JSON content."""

    id: str
    kind: str
    content: dict[str, Any]


def follow_events(connection: Connection, path: str, deadline: float | None = None) -> Iterator[Event]:
    """Yield the events up to the last; raise TimeoutError at the deadline of the monotonic clock.

    If too many streams are open, poll for recorded events instead, which gives the same events.
    """
    last: str | None = None
    polling_until = 0.0
    seen = time.monotonic()
    waits = pauses()
    while True:
        try:
            headers = {"Last-Event-ID": last} if last else {}
            is_polling = time.monotonic() < polling_until
            asked = {"follow": "false"} if is_polling else None
            with connection.stream(path, asked, headers, _seconds_left(deadline)) as answer:
                if answer.status_code == 204:
                    return
                for event in parse_events(_check_deadline(deadline, answer.iter_bytes())):
                    last, seen, waits = event.id, time.monotonic(), pauses()
                    yield event
                    if event.kind == "end":
                        return
            # A stream that ends before its job does: the server is stopping.
            wait = POLL_SECONDS if is_polling else next(waits)
        except (ServerUnavailable, RateLimited) as error:
            if time.monotonic() - seen > PATIENCE_SECONDS:
                raise
            wait = error.retry_after or next(waits)
            if isinstance(error, RateLimited) and error.kind == TOO_MANY_STREAMS:
                polling_until, wait = time.monotonic() + POLLING_SECONDS, 0.0
        time.sleep(min(wait, _seconds_left(deadline)))


def parse_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events in the bytes of a stream. Only a line feed ends a line: names may contain other line ends."""
    fields: dict[bytes, bytes] = {}
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                name, _, value = line.partition(b":")
                fields[name] = value.removeprefix(b" ")
            else:
                if b"data" in fields:
                    yield Event(fields[b"id"].decode(), fields[b"event"].decode(), json.loads(fields[b"data"]))
                fields = {}


def _check_deadline(deadline: float | None, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks until the deadline. Keep-alive comments are chunks, too, so a quiet stream notices it."""
    for chunk in chunks:
        _seconds_left(deadline)
        yield chunk


def _seconds_left(deadline: float | None) -> float:
    if deadline is None:
        return MAX_SILENCE_SECONDS
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the job has not ended in time; it continues on the server")
    return min(left, MAX_SILENCE_SECONDS)
