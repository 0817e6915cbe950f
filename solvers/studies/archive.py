"""Saved states of studies: an `.npz` file with a JSON header and arrays, without pickles."""

import io
import json
from collections.abc import Mapping
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ncp_client.formats.npz import read_npz
from sparse_ncp.solvers.errors import InvalidInput


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    written: dict[str, Any] = {**arrays, "header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    np.savez(buffer, **written)
    return buffer.getvalue()


def unpack(content: bytes, study: str, readable: int) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the arrays of a saved state; InvalidInput if it is damaged or of another kind or format."""
    try:
        arrays = read_npz(io.BytesIO(content))
        header: dict[str, Any] = json.loads(arrays.pop("header").tobytes())
        found = header["study"], header["format"]
    except (BadZipFile, OSError, EOFError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput("state", "is damaged", "resume from an older one") from error
    if found != (study, readable):
        raise InvalidInput("state", f"is of {found[0]}, format {found[1]}", "resume it with the function that saved it")
    return header, arrays
