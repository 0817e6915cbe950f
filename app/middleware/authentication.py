"""Authentication of every request under /v1; the rate limit is checked in the same thread hop."""

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparse_ncp.app.auth.authenticate import Caller, Identify, needs_caller
from sparse_ncp.app.errors.handlers import PROBLEM_TYPES, to_response
from sparse_ncp.app.middleware.rate_limit import check_rate, rate_limit_headers, take_token
from sparse_ncp.worker.contract import Allowance
from sparse_ncp.worker.logs import log_context


class AuthenticationMiddleware:
    """Sets `request.state.caller`, or refuses before the body is read."""

    def __init__(self, app: ASGIApp, identify: Identify) -> None:
        self.app = app
        self._identify = identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not needs_caller(scope["path"]):
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        headers: dict[str, str] = {}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        def authenticate() -> tuple[Caller, Allowance | None]:  # blocks: a key is a file, a token a call to Redis
            caller = self._identify(request)
            return caller, take_token(caller, request.app.state.records)

        try:
            caller, allowance = await asyncio.to_thread(authenticate)
            headers.update(rate_limit_headers(allowance))
            check_rate(allowance)
        except tuple(PROBLEM_TYPES) as error:
            await to_response(error)(scope, receive, send_with_headers)
            return
        request.state.caller = caller
        log_context().owner = caller.owner
        await self.app(scope, receive, send_with_headers)
