"""No page from elsewhere acts in the name of whoever sits at the browser."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.problems import problem

HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
REMEDY = "call from a program, or ask the operator to name the page's origin in NCP_CORS_ORIGINS"


class SameSite:
    """A page from elsewhere can make a browser send a POST that needs no preflight; on an open server it would count.

    Browsers say where a request comes from (Sec-Fetch-Site) to servers on loopback and behind TLS. On other addresses
    a key is needed, which no page from elsewhere has.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self.app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in HARMLESS and self._is_foreign(Headers(scope=scope)):
            refusal = problem(403, "foreign-page", "A page of another origin may not do this.", REMEDY)
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _is_foreign(self, headers: Headers) -> bool:
        return (
            headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("origin") not in self._origins
        )
