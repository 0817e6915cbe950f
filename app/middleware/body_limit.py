"""A limit for every request body but an upload, so that none is collected in memory beyond it."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparse_ncp.app.auth.authenticate import API_PREFIX

UPLOADS = f"{API_PREFIX}/tensors"  # streams to the disk, and counts its own bytes


class BodyLimitMiddleware:
    """Counts the bytes that arrive, whatever Content-Length says, and refuses with 413 past the limit."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == UPLOADS:
            await self.app(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.max_bytes:
                raise HTTPException(413, f"The body is over {self.max_bytes} bytes.")
            return message

        await self.app(scope, counted, send)
