"""Answers of renderers: wait for one while the client is connected, and send it from its file."""

import os
from collections.abc import Iterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from sparse_ncp.worker.rendering.pool import Renderers
from sparse_ncp.worker.rendering.request import Rendering
from sparse_ncp.worker.store.blobs import OpenFile

# Sent at once, and held in memory for every client that is slow to read it.
CHUNK = 1 << 18


async def rendered_file(request: Request, renderers: Renderers, asked: Rendering) -> OpenFile:
    """Return the answer as an open file. The work ends if the client disconnects."""

    async def until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    try:
        return await renderers.answer(asked, until_gone)
    except ConnectionAbortedError as error:
        raise ClientDisconnect from error


async def rendered(request: Request, renderers: Renderers, asked: Rendering, media_type: str) -> Response:
    """Return the answer as a response, without the validators and ranges of a file."""
    opened = await rendered_file(request, renderers, asked)
    if opened.nbytes <= CHUNK:
        with opened.file as file:
            return Response(os.pread(file.fileno(), CHUNK, 0), media_type=media_type)
    return StreamingResponse(_chunks(opened), headers={"Content-Length": str(opened.nbytes)}, media_type=media_type)


def _chunks(opened: OpenFile) -> Iterator[bytes]:
    """Yield a file from its start: its position is shared with other clients of the same answer."""
    with opened.file as file:
        for start in range(0, opened.nbytes, CHUNK):
            yield os.pread(file.fileno(), CHUNK, start)
