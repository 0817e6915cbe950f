"""Request ids, in responses and log lines; the access log and the request metrics."""

import logging
import re
import secrets
import time
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparse_ncp.app.metrics import HttpMetrics
from sparse_ncp.app.responses import REQUEST_ID_HEADER
from sparse_ncp.worker.logs import LogContext, bind_context

SAFE = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Requested every few seconds by monitoring programs, so logged at debug level.
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
log = logging.getLogger("ncp.http")


class RequestIdMiddleware:
    """Keeps the caller's request id if it is safe to log, else makes one; logs and counts every response."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        received = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = received if SAFE.fullmatch(received) else secrets.token_hex(8)
        bind_context(LogContext(request_id=request_id))
        started, status, waited = time.perf_counter(), 500, None

        async def send_with_id(message: Message) -> None:
            nonlocal status, waited
            if message["type"] == "http.response.start":
                status, waited = message["status"], time.perf_counter() - started
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - started
            level = logging.DEBUG if scope["path"] in PROBES and status < 400 else logging.INFO
            fields = {
                "method": scope["method"],
                "route": template(scope),
                "path": quote(scope["path"], safe="/:@~!$&'()*+,;="),  # still encoded: it cannot start a new log line
                "status": status,
                "milliseconds": round(1000 * seconds, 1),
            }
            log.log(level, "%(method)s %(path)s %(status)d %(milliseconds).1f ms", fields, extra=fields)
            self._metrics.answered(scope["method"], template(scope), status, seconds if waited is None else waited)


def template(scope: Scope) -> str:
    """Return the path of the route, such as `/v1/jobs/{job_id}`, so that metrics have few labels."""
    route = scope.get("route")
    return "unmatched" if route is None else str(route.path)
