"""One `Host` per request: of two, a proxy may believe one and the server the other."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from sparse_ncp.app.errors.problem import problem


class HostHeaderMiddleware:
    """Refuses a request with several `Host` headers (RFC 9112, 3.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and len(Headers(scope=scope).getlist("host")) > 1:
            await problem(400, "several-hosts", "The request has several Host headers.", "send one")(
                scope, receive, send
            )
            return
        await self.app(scope, receive, send)
