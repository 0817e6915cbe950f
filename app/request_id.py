"""A request id for every request: in its answer, and in every log line written on its behalf. One line per answer."""

import logging
import re
import secrets
import time
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.numbers import Numbers
from worker.logs import Subject, concern

HEADER = "X-Request-Id"
HARMLESS = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Asked every few seconds by programs that look after this one.
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
log = logging.getLogger("ncp.http")


class RequestId:
    """Keeps the caller's id if it is harmless to log, else draws one; logs and counts every answer."""

    def __init__(self, app: ASGIApp, numbers: Numbers) -> None:
        self.app = app
        self._numbers = numbers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        identity = _identity(scope)
        concern(Subject(request_id=identity))
        started, status, waited = time.perf_counter(), 500, None

        async def answer(message: Message) -> None:
            nonlocal status, waited
            if message["type"] == "http.response.start":
                status, waited = message["status"], time.perf_counter() - started
                MutableHeaders(scope=message)[HEADER] = identity
            await send(message)

        try:
            await self.app(scope, receive, answer)
        finally:
            seconds = time.perf_counter() - started
            _tell(scope, status, seconds)
            self._numbers.answered(scope["method"], template(scope), status, seconds if waited is None else waited)


def _tell(scope: Scope, status: int, seconds: float) -> None:
    level = logging.DEBUG if scope["path"] in PROBES and status < 400 else logging.INFO
    told = {
        "method": scope["method"],
        "route": template(scope),
        "path": _path(scope),
        "status": status,
        "milliseconds": round(1000 * seconds, 1),
    }
    log.log(level, "%(method)s %(path)s %(status)d %(milliseconds).1f ms", told, extra=told)


def template(scope: Scope) -> str:
    """The path as it is declared, `/v1/jobs/{job_id}`: there are only so many, whatever callers ask for."""
    route = scope.get("route")
    return "unmatched" if route is None else str(route.path)


def _identity(scope: Scope) -> str:
    asked = Headers(scope=scope).get(HEADER, "")
    return asked if HARMLESS.fullmatch(asked) else secrets.token_hex(8)


def _path(scope: Scope) -> str:
    """As it was sent, still encoded: a path must not be able to write log lines of its own."""
    return quote(scope["path"], safe="/:@~!$&'()*+,;=")
