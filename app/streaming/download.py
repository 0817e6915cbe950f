"""Download stored files: strong ETag, 304, ranges, in large chunks (four times as fast as the default)."""

import re
from typing import BinaryIO

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from sparse_ncp.worker.store.blobs import OpenFile

# A cache must revalidate each time, which a 304 makes cheap: a running job's factors change.
CACHE = "private, no-cache"
BYTES = "application/octet-stream"
BYTE_RANGE = re.compile(r"bytes=\s*(\d+-\d*|-\d+)(\s*,\s*(\d+-\d*|-\d+))*\s*$")


class StoredFile(FileResponse):
    """A file response that refuses a range with a problem.

    The file is open already: it stays whole for this reader, even if it is replaced or deleted meanwhile.
    """

    chunk_size = 1 << 20

    def __init__(self, file: BinaryIO, headers: dict[str, str], filename: str, media_type: str) -> None:
        self._file = file
        opened = f"/dev/fd/{file.fileno()}"
        super().__init__(opened, headers=headers, filename=filename, media_type=media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def refuse(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in (400, 416):
                allowed = Headers(raw=message["headers"]).get("content-range")
                headers = {"Content-Range": allowed} if allowed else None
                raise HTTPException(message["status"], "The Range header cannot be served.", headers)
            await send(message)

        # A Range in another unit than bytes, or with another method than GET, is ignored.
        usable = scope["method"] == "GET" and BYTE_RANGE.match(Headers(scope=scope).get("range", ""))
        headers = [(name, value) for name, value in scope["headers"] if usable or name != b"range"]
        with self._file:
            await super().__call__({**scope, "headers": headers}, receive, refuse)


def serve_file(request: Request, opened: OpenFile, filename: str, media_type: str = BYTES) -> Response:
    """Serve a file, a range of it, or 304 if the caller has the same bytes. It is closed afterwards."""
    headers = {"ETag": f'"{opened.sha256}"', "Cache-Control": CACHE}
    if opened.iteration is not None:
        headers["Factors-Iteration"] = str(opened.iteration)
    if "if-match" in request.headers and not matches(request.headers["if-match"], headers["ETag"]):
        opened.file.close()
        raise HTTPException(412, "The file is not the one named in If-Match.")
    if matches(request.headers.get("if-none-match"), headers["ETag"]):
        opened.file.close()
        return Response(status_code=304, headers=headers)
    return StoredFile(opened.file, headers, filename, media_type)


def matches(header: str | None, etag: str) -> bool:
    """Return whether If-Match or If-None-Match names the tag, which a proxy may have marked as weak (W/)."""
    tags = [tag.strip().removeprefix("W/") for tag in (header or "").split(",")]
    return etag in tags or "*" in tags
