"""Downloads to a file: whole under its final name, or not there at all."""

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
    """Write beside the target, flush, rename: a full disk or a cut connection leaves what was there before."""
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
    """Write an answer into an open, empty file. If it has an ETag, that is its digest: what came damaged is asked for
    again. Tables and pictures, which are made on request, have none."""

    def fetch() -> None:
        file.seek(0)
        file.truncate()
        digest = sha256()
        with connection.stream(path, params) as answer:
            for chunk in answer.iter_bytes(CHUNK):
                digest.update(chunk)
                file.write(chunk)
            if answer.headers.get("etag", f'"{digest.hexdigest()}"') != f'"{digest.hexdigest()}"':
                raise ServerUnavailable(f"{connection.url}{path} came damaged", maybe_done=True)

    connection.with_retries(fetch)
