"""One client's connection: bounded headers, no endless waiting for a slow client, refusals as problems here too."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.problems import problem

HEADER_BYTES = 32 << 10
# What a client must move in NCP_SLOW_SECONDS, to us or from us, to be worth waiting for.
LEAST_BYTES = 16 << 10
log = logging.getLogger("ncp.connection")


class Connection(HttpToolsProtocol):
    """uvicorn's own, watched: one timer per connection, set when something is awaited of the client."""

    slow_seconds: float = 30.0
    too_slow: Callable[[str], None] = staticmethod(lambda at: None)

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._timer: asyncio.TimerHandle | None = None
        self._in_header = True
        self._in_body = False
        self._framing_bytes = 0  # since the last piece of a body: headers, lengths of chunks, trailers
        self._moved = 0
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_client()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._moved += len(data)
        self._framing_bytes += len(data)
        if self._in_header and self._timer is None:  # the next request on a kept connection begins
            self._await_client()
        super().data_received(data)
        if self._framing_bytes > HEADER_BYTES:
            self._refuse(431, "header-too-large", f"The header is over {HEADER_BYTES} bytes.", "send a shorter one")

    def on_headers_complete(self) -> None:
        self._in_header, self._in_body, self._framing_bytes = False, True, 0
        self._await_client()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_header, self._in_body, self._framing_bytes = True, False, 0
        self._forget_timer()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._in_body:
            self._await_client()
        else:
            self._forget_timer()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn refuses before any route is asked."""
        self._refuse(400, "bad-request", "This is no HTTP request.", "check the request line, headers and lengths")

    def _await_client(self) -> None:
        """From now on, the client has its time."""
        self._forget_timer()
        self._moved, self._unsent = 0, self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self.slow_seconds, self._look)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """The time is over: was it used?"""
        stalled = self._stalled()
        if stalled is None:
            self._await_client()
        elif self._is_answering():
            self._give_up(stalled)
        else:
            self._refuse_slow(stalled)

    def _is_answering(self) -> bool:
        """Whether another answer would go astray: one is on its way, or the body of a refused request still comes."""
        if self.cycle is None or not self.cycle.response_started:
            return False
        return self._in_body or not self.cycle.response_complete

    def _stalled(self) -> str | None:
        """At what, if it is the client that we are waiting for."""
        if self.flow.write_paused:
            taken = self._unsent - self.transport.get_write_buffer_size()
            return "reading" if taken < LEAST_BYTES else None
        if self._in_header:
            return "headers"
        if self.cycle.response_complete:  # it was refused, and has had its time to hear that
            return "body"
        is_our_turn = self.flow.read_paused or self.cycle.waiting_for_100_continue
        return "body" if not is_our_turn and self._moved < LEAST_BYTES else None

    def _refuse_slow(self, at: str) -> None:
        """A connection on which nothing came is closed without a word: browsers open some in reserve."""
        if at == "headers" and not self._framing_bytes:
            self.transport.close()
            return
        self._note(at)
        self._refuse(408, "too-slow", f"The {at} did not come in time.", "send it faster, or in smaller requests")
        if self.cycle is not None:  # the route learns that its caller is gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _give_up(self, at: str) -> None:
        """At once: closing in good manner would wait for the client."""
        self._note(at)
        self.transport.abort()

    def _note(self, at: str) -> None:
        log.info("closed a client that was too slow: %s", at)
        self.too_slow(at)

    def _refuse(self, status: int, word: str, detail: str, remedy: str) -> None:
        self._forget_timer()
        if not self.transport.is_closing():
            self.transport.write(_raw(problem(status, word, detail, remedy, headers={"Connection": "close"})))
            self.transport.close()


def _raw(response: Response) -> bytes:
    headers = [b"%s: %s\r\n" % (name, value) for name, value in response.raw_headers]
    return b"".join([STATUS_LINE[response.status_code], *headers, b"\r\n", bytes(response.body)])
