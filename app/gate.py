"""The one way in: every request under /v1 has a caller, and no caller has too many requests."""

from anyio import to_thread
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.callers import Caller, Identify
from app.problems import TABLE, told
from app.turned_away import TooFast
from worker.limits import Allowance
from worker.logs import subject

GUARDED = "/v1"
POLICY = "requests"


class Gate:
    """Before the body is read. What lies outside /v1 is the same for everybody: health, documentation, the page."""

    def __init__(self, app: ASGIApp, identify: Identify) -> None:
        self.app = app
        self._identify = identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_guarded(scope["path"]):
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        headers: dict[str, str] = {}

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        try:
            caller, allowance = await to_thread.run_sync(self._admit, request)
            headers.update(rate_headers(allowance))
            if allowance is not None and not allowance.granted:
                raise TooFast(allowance)
        except tuple(TABLE) as error:
            await told(error)(scope, receive, counted)
            return
        request.state.caller = caller
        subject().owner = caller.owner
        await self.app(scope, receive, counted)

    def _admit(self, request: Request) -> tuple[Caller, Allowance | None]:
        """In a thread: a key is a file, a count a call to Redis."""
        caller = self._identify(request)
        rate, records = caller.limits.requests_per_second, request.app.state.records
        return caller, None if rate is None else records.take_request(caller.owner, rate)


def is_guarded(path: str) -> bool:
    return path == GUARDED or path.startswith(f"{GUARDED}/")


def rate_headers(allowance: Allowance | None) -> dict[str, str]:
    """As in draft-ietf-httpapi-ratelimit-headers-11: the policy, and where the caller stands with it."""
    if allowance is None:
        return {}
    return {
        "RateLimit-Policy": f'"{POLICY}";q={allowance.quota};w={allowance.window_seconds}',
        "RateLimit": f'"{POLICY}";r={allowance.left};t={allowance.wait_seconds}',
    }
