"""A request id for every request: in its answer, and in every log line written on its behalf."""

import logging
import re
import secrets
import time
from contextvars import ContextVar
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="-")
HARMLESS = re.compile(r"[A-Za-z0-9._-]{1,64}")
log = logging.getLogger("ncp.http")


class RequestId:
    """Keeps the caller's id if it is harmless to log, else draws one; writes one line per answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        REQUEST_ID.set(identity := _identity(scope))
        started, status = time.perf_counter(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = identity
            await send(message)

        try:
            await self.app(scope, receive, answer)
        finally:
            milliseconds = 1000 * (time.perf_counter() - started)
            log.info("%s %s %d %.1f ms", scope["method"], _path(scope), status, milliseconds)


class AddRequestId(logging.Filter):
    """Gives every log record the id of the request it belongs to, `-` outside of one."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = REQUEST_ID.get()
        return True


def _identity(scope: Scope) -> str:
    asked = Headers(scope=scope).get(HEADER, "")
    return asked if HARMLESS.fullmatch(asked) else secrets.token_hex(8)


def _path(scope: Scope) -> str:
    """As it was sent, still encoded: a path must not be able to write log lines of its own."""
    return quote(scope["path"], safe="/:@~!$&'()*+,;=")
