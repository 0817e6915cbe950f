"""Cross-origin requests: CORS for the origins that the operator names, a refusal for all others (CSRF)."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from sparse_ncp.app.auth.hosts import HOST
from sparse_ncp.app.auth.sessions import COOKIE
from sparse_ncp.app.errors.problem import problem

DEFAULT_PORTS = {"http": 80, "https": 443}
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
REMEDY = "call from a program, or ask the operator to name the page's origin in NCP_CORS_ORIGINS"
ALLOWED_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
EXPOSED_HEADERS = (
    "Content-Disposition", "Content-Range", "ETag", "Factors-Iteration", "Idempotent-Replayed", "Link", "Location",
    "RateLimit", "RateLimit-Policy", "Retry-After", "WWW-Authenticate", "X-Request-Id",
)  # fmt: skip
ALLOWED_HEADERS = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "Repr-Digest",
    "Range",
    "X-Request-Id",
)


class CrossOriginMiddleware:
    """Refuses requests by which a page of another origin would change something.

    CORS is not enough, because some such requests need no preflight, and an open server needs no key. On loopback and
    behind TLS, browsers report the origin of a request in Sec-Fetch-Site; old ones only send Origin, which is compared
    with Host unless there is a key, which a foreign page does not have. A cookie is sent by the browser itself, so even
    an origin that the operator names may not use a session.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self.app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in SAFE_METHODS and self._is_foreign(Headers(scope=scope)):
            refusal = problem(403, "foreign-page", "A page of another origin may not make this request.", REMEDY)
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _is_foreign(self, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        has_key = headers.get("authorization", "").lower().startswith("bearer ")
        if origin in self._origins and (has_key or COOKIE not in headers.get("cookie", "")):
            return False
        if site is not None or origin is None or has_key:
            return site in ("cross-site", "same-site")
        return not _is_same(origin, headers.get("host", ""))


def _is_same(origin: str, host: str) -> bool:
    """Return whether an origin has this host and port. Either may leave out the default port of the scheme."""
    if HOST.fullmatch(host.strip().lower()) is None:  # such as localhost@evil.example, of which urlsplit takes the end
        return False
    try:
        ours, theirs = urlsplit(origin), urlsplit(f"//{host}")
        ports = [DEFAULT_PORTS.get(ours.scheme) if url.port is None else url.port for url in (ours, theirs)]
        return ours.hostname is not None and ours.hostname == theirs.hostname and ports[0] == ports[1]
    except ValueError:  # neither a name nor an address, or a port that is no number
        return False


def cross_origin(app: ASGIApp, origins: Sequence[str]) -> CORSMiddleware:
    """Return the CORS middleware for the named origins. Cookies are not allowed: such a page sends a key itself."""
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=ALLOWED_METHODS, allow_headers=ALLOWED_HEADERS,
        expose_headers=EXPOSED_HEADERS, max_age=600,
    )  # fmt: skip
