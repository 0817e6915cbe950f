"""Downloads to a file, which appears under its name only when it is complete."""

import os
import secrets
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import IO, Any

from ncp_client.http.connection import Connection
from ncp_client.http.errors import ServerUnavailable

CHUNK = 1 << 20


def download(connection: Connection, path: str, target: "str | PathLike[str]", **params: Any) -> None:
    """Download to a temporary file beside the target, then rename it; after a failure the target is unchanged."""
    final = Path(target)
    aside = final.with_name(f".{final.name}.{secrets.token_hex(4)}")
    try:
        with aside.open("xb") as file:
            copy(connection, path, file, **params)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(final)
    finally:
        aside.unlink(missing_ok=True)


def copy(connection: Connection, path: str, file: IO[bytes], **params: Any) -> None:
    """Write a response to an open file, and retry if it does not match its ETag, which is its SHA-256.

    Tables and plots are made on request and have no ETag.
    """

    def fetch() -> None:
        file.seek(0)
        file.truncate()
        digest = sha256()
        with connection.stream(path, params) as answer:
            for chunk in answer.iter_bytes(CHUNK):
                digest.update(chunk)
                file.write(chunk)
            if answer.headers.get("etag", f'"{digest.hexdigest()}"') != f'"{digest.hexdigest()}"':
                raise ServerUnavailable(f"{connection.url}{path} was damaged on its way", maybe_done=True)

    connection.with_retries(fetch)
