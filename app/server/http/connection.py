"""The HTTP protocol of a connection: limits for their number, header size and slow clients; refusals as problems."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from sparse_ncp.app.errors.problem import problem
from sparse_ncp.app.server.http.buffered_body import BufferedBody
from sparse_ncp.app.server.http.connection_limits import ConnectionLimits
from sparse_ncp.app.streaming.body import EXTENSION

# As much as nginx accepts; httptools has no limit.
HEADER_BYTES = 32 << 10
# A client that sends or reads less than this in NCP_SLOW_SECONDS is disconnected. That setting alone gives the rate.
MIN_BYTES = 16 << 10
# Pieces of a body from this size on pause reading in uvicorn until they are taken.
LARGE_PIECE = 64 << 10
# Bodies from this size on are received by BufferedBody.
LARGE_BODY = 1 << 20
log = logging.getLogger("ncp.connection")


# Of the body of a refused request, so many bytes are received and discarded: some clients read the refusal only after
# they have sent everything, and a connection that is kept saves the next request a new one.
DISCARDED_BYTES = 4 << 20


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with a timer, which runs while the server waits for the client to send or read."""

    slow_seconds: float = 30.0
    too_slow: Callable[[str], None] = staticmethod(lambda at: None)
    limits: ConnectionLimits

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._timer: asyncio.TimerHandle | None = None
        self._in_header = True
        self._in_body = False
        self._framing_bytes = 0  # since the last piece of a body: headers, lengths of chunks, trailers
        self._moved = 0
        self._unsent = 0
        self._discarded = 0  # of the body of a refused request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limits.add(self):
            self._start_timer()
        else:
            self._refuse(503, "too-many-connections", "The server has too many connections.", "try again in a minute")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.limits.remove(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        if self.has_caller():
            self.limits.mark_authenticated(self)
        if self._in_body and not self.transport.is_closing():  # refused: from now on it has time to read that
            self._start_timer()
        super().on_response_complete()

    # For the limits

    @property
    def address(self) -> str | None:
        return self.client[0] if self.client else None

    def has_caller(self) -> bool:
        return self.scope is not None and "caller" in self.scope["state"]

    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def close_idle(self) -> None:
        self._stop_timer()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._moved += len(data)
        self._framing_bytes += len(data)
        if self._in_header and self._timer is None:  # the next request on a kept connection begins
            self._start_timer()
        super().data_received(data)
        if self._framing_bytes > HEADER_BYTES:
            self._refuse(431, "header-too-large", f"The header is over {HEADER_BYTES} bytes.", "send a shorter one")

    def on_headers_complete(self) -> None:
        self._in_header, self._in_body, self._framing_bytes, self._discarded = False, True, 0, 0
        self._start_timer()
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        length = dict(self.headers).get(b"content-length", b"").strip()
        if length.isdigit() and int(length) >= LARGE_BODY:
            body = BufferedBody(self, int(length), self.count_body, self.count_discarded)
            self.scope["extensions"] = {EXTENSION: {"body": body}}

    def count_body(self, nbytes: int) -> None:
        """Count bytes that did not pass through `data_received`."""
        self._moved += nbytes
        self._unset_keepalive_if_required()

    def count_discarded(self, nbytes: int) -> None:
        """Count bytes that follow a refusal. Close the connection after a few MB: the client had time to read it."""
        self._discarded += nbytes
        if self._discarded > DISCARDED_BYTES:
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        """Pass a large piece on without the two copies that uvicorn would make."""
        self._framing_bytes = 0
        if self.cycle.response_complete:
            self.count_discarded(len(body))
        if len(body) >= LARGE_PIECE and not self.cycle.body and not self.cycle.response_complete:
            self.cycle.body, body = body, b""  # type: ignore[assignment]
        elif isinstance(self.cycle.body, bytes):  # to which the next would be added by copying all
            self.cycle.body = bytearray(self.cycle.body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_header, self._in_body, self._framing_bytes = True, False, 0
        self._stop_timer()
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:  # refused before: uvicorn waits for nothing more
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._in_body:
            self._start_timer()
        else:
            self._stop_timer()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that uvicorn cannot parse."""
        self._refuse(
            400, "bad-request", "The request is not valid HTTP.", "check the request line, headers and lengths"
        )

    def _start_timer(self) -> None:
        """Start the timer, and count from zero what the client sends and reads."""
        self._stop_timer()
        self._moved, self._unsent = 0, self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self.slow_seconds, self._check_speed)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_speed(self) -> None:
        """Keep waiting for a client that was fast enough; refuse one that was not with 408, or just disconnect it."""
        stalled = self._stalled()
        if stalled is None:
            self._start_timer()
            return
        if stalled == "headers" and not self._framing_bytes and not self._is_answering():
            self.transport.close()  # without a byte: browsers open some connections in reserve
            return
        log.info("closed the connection of a client that was too slow: %s", stalled)
        self.too_slow(stalled)
        if self._is_answering():
            self.transport.abort()  # an orderly close would wait for the client
            return
        self._refuse(408, "too-slow", f"The {stalled} did not come in time.", "send it faster, or in smaller requests")
        if self.cycle is not None:  # so that the route sees the disconnect
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _is_answering(self) -> bool:
        """Return whether it is too late for a refusal: a response has begun, or the request was refused already."""
        if self.cycle is None or not self.cycle.response_started:
            return False
        return self._in_body or not self.cycle.response_complete

    def _stalled(self) -> str | None:
        """Return "headers", "body" or "reading" if the client is too slow at it, or None."""
        if self.flow.write_paused:
            taken = self._unsent - self.transport.get_write_buffer_size()
            return "reading" if taken < MIN_BYTES else None
        if self._in_header:
            return "headers"
        if self.cycle.response_complete:  # it was refused, and has had time to read that
            return "body"
        is_our_turn = self.flow.read_paused or self.cycle.waiting_for_100_continue
        return "body" if not is_our_turn and self._moved < MIN_BYTES else None

    def _refuse(self, status: int, word: str, detail: str, remedy: str) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            response = problem(status, word, detail, remedy, headers={"Connection": "close"})
            headers = [b"%s: %s\r\n" % (name, value) for name, value in response.raw_headers]
            self.transport.write(b"".join([STATUS_LINE[status], *headers, b"\r\n", bytes(response.body)]))
            self.transport.close()
