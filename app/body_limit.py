"""No request body but a tensor's is large: the rest is cut off here, before anything collects it in memory."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LIMIT = 1 << 20
STREAMED = "/v1/tensors"  # counts its own bytes


class BodyLimit:
    """Counts what arrives, whatever Content-Length says, and refuses with 413 past the limit."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == STREAMED:
            await self.app(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > LIMIT:
                raise HTTPException(413, f"The body is over {LIMIT} bytes.")
            return message

        await self.app(scope, counted, send)
