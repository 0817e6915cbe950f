"""The body and the headers of an upload request."""

import base64
import binascii
import re
from collections.abc import AsyncIterator

from fastapi import Request

from sparse_ncp.app.errors.exceptions import TooLarge, UnsupportedMedia
from sparse_ncp.app.streaming.body import Body, GatheredBody, raw_body
from sparse_ncp.app.streaming.multipart import MAX_AROUND, FormFile
from sparse_ncp.worker.errors import BadTensor

DIGEST = re.compile(r"(?:^|,)\s*sha-256\s*=\s*:([^:]*):")


def tensor_stream(request: Request) -> AsyncIterator[bytes] | FormFile | Body:
    """Return the bytes of the tensor, from a raw body or a form."""
    content_type = request.headers.get("content-type", "")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("The body is compressed.", "send the .npy file as it is")
    if content_type.lower().startswith("multipart/form-data"):
        return FormFile(content_type, request.stream())
    if content_type.lower().startswith(("multipart/", "application/json")):
        raise UnsupportedMedia(
            f"A body of type {content_type} is not a tensor.", "send application/octet-stream or multipart/form-data"
        )
    return raw_body(request) or request.stream()


def declared_length(request: Request) -> int:
    """Return the least size of the tensor according to Content-Length, or 0 without that header."""
    declared = request.headers.get("content-length", "")
    allowance = MAX_AROUND if request.headers.get("content-type", "").lower().startswith("multipart/") else 0
    return max(0, int(declared) - allowance) if declared.isdecimal() else 0


def check_length(length: int, limit: int | None) -> None:
    """Raise TooLarge if the tensor is over the limit."""
    if limit is not None and length > limit:
        raise TooLarge(limit)


def expected_sha256(request: Request) -> str | None:
    """Return the digest in `Repr-Digest: sha-256=:…:` (RFC 9530) in hexadecimal; other algorithms are ignored."""
    header = request.headers.get("repr-digest", "")
    if "sha-256" not in header.lower():
        return None
    try:
        found = DIGEST.search(header)
        return base64.b64decode(found[1] if found else ":", validate=True).hex()
    except binascii.Error as error:
        raise BadTensor("Repr-Digest", "is not base64 between colons", "send sha-256=:BASE64:") from error


def upload_body(stream: AsyncIterator[bytes] | FormFile | Body, limit: int | None) -> Body:
    """Return the stream as a body that is read into buffers, and that raises TooLarge beyond the limit."""
    if isinstance(stream, Body):
        return stream

    async def limited() -> AsyncIterator[bytes]:
        size = 0
        async for piece in stream:
            size += len(piece)
            check_length(size, limit)
            yield piece

    return GatheredBody(limited())
