"""Headers that keep browsers from doing more with our answers than we mean, and the origins that may do more."""

from collections.abc import Mapping, Sequence

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "Content-Security-Policy"
# An answer that is a page says itself what it needs; everything else needs nothing.
HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    POLICY: "default-src 'none'; frame-ancestors 'none'",
}
READ = (
    "Content-Disposition", "Content-Range", "ETag", "Idempotent-Replayed", "Link", "Location", "RateLimit",
    "RateLimit-Policy", "Retry-After", "WWW-Authenticate", "X-Request-Id",
)  # fmt: skip
SENT = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Repr-Digest", "Range", "X-Request-Id")


class SecurityHeaders:
    """On every answer, unless the route has set its own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, guarded)


def cross_origin(app: ASGIApp, origins: Sequence[str]) -> CORSMiddleware:
    """For the named origins only. No cookies: a key is sent by the page itself."""
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=["GET", "HEAD", "POST", "DELETE"], allow_headers=SENT,
        expose_headers=READ, max_age=600,
    )  # fmt: skip
