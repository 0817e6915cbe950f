"""A history as JSON or CSV, encoded page by page while it is sent, so that memory does not grow with its length."""

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from pydantic import TypeAdapter
from starlette.responses import Response, StreamingResponse

from sparse_ncp.worker.contract import Progress

MEDIA_TYPES = {"json": "application/json", "csv": "text/csv; charset=utf-8"}
ROWS: TypeAdapter[Sequence[Progress]] = TypeAdapter(Sequence[Progress])


def history_response(pages: Iterator[Sequence[Progress]], format: str, method: str) -> Response:
    """Return the pages as one list or table; the length is known, and sent, only if there is one page."""
    encode = encode_csv if format == "csv" else encode_json
    first = list(islice(pages, 2))
    if len(first) < 2:
        return Response(b"".join(encode(iter(first))), media_type=MEDIA_TYPES[format])
    content = iter(()) if method == "HEAD" else encode(chain(first, pages))
    return StreamingResponse(content, media_type=MEDIA_TYPES[format])


def encode_json(pages: Iterator[Sequence[Progress]]) -> Iterator[bytes]:
    """Yield the pages as one JSON list."""
    separator = b"["
    for page in pages:
        yield separator + ROWS.dump_json(page)[1:-1]
        separator = b","
    yield b"[]" if separator == b"[" else b"]"


def encode_csv(pages: Iterator[Sequence[Progress]]) -> Iterator[bytes]:
    """Yield the pages as one table, with all digits: reading them back gives the same bits."""
    yield (",".join(Progress.model_fields) + "\n").encode()
    for page in pages:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(row.model_dump().values() for row in page)
        yield text.getvalue().encode()
