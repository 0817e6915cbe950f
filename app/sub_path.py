"""A server that a proxy shows below a path: addresses in its answers begin with that path, or clients would miss it."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class SubPath:
    """The proxy takes the path away from requests; this puts it in front of `Location` and `Link`."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self.app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def below(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("location", "").startswith("/"):
                    headers["location"] = self._path + headers["location"]
                if headers.get("link", "").startswith("</"):
                    headers["link"] = f"<{self._path}{headers['link'].removeprefix('<')}"
            await send(message)

        await self.app(scope, receive, below)
