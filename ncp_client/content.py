"""Tensors as the bytes of a `.npy` file, piece by piece: never a second copy in memory."""

import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Literal

from ncp_client.http.errors import Refused

CHUNK = 1 << 20


@dataclass(frozen=True)
class Content:
    """The bytes of a `.npy` file that can be read more than once."""

    nbytes: int
    chunks: Callable[[], Iterator[bytes]]

    def sha256(self) -> bytes:
        digest = sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.digest()


def file_content(path: Path) -> Content:
    """Return the content of a file; Refused, as the server would refuse it, if its header is not that of a tensor."""
    from ncp_client.formats import UnreadableFile, check_tensor, find_format

    with path.open("rb") as opened:
        try:
            for variable in find_format(opened).variables(opened):
                check_tensor(variable)
        except UnreadableFile as error:
            wrong = {"field": "file", "problem": error.problem, "remedy": error.remedy}
            raise Refused(
                {
                    "type": "urn:sparse-ncp:problem:bad-tensor",
                    "title": HTTPStatus.UNPROCESSABLE_ENTITY.phrase,
                    "status": HTTPStatus.UNPROCESSABLE_ENTITY,
                    "detail": f"file: {error.problem}",
                    "remedy": error.remedy,
                    "errors": [wrong],
                }
            ) from error

    def chunks() -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    return Content(path.stat().st_size, chunks)


@contextmanager
def spooled_content(stream: IO[bytes]) -> Iterator[Content]:
    """Copy a stream that can be read only once, such as standard input, to a temporary file."""
    with tempfile.NamedTemporaryFile(prefix="ncp-") as file:
        shutil.copyfileobj(stream, file, CHUNK)
        file.flush()
        yield file_content(Path(file.name))


def array_content(source: Any) -> Content:
    """An array or memory map, in its own order; one with strides is put in order a piece at a time."""
    import numpy as np

    if isinstance(source, np.ma.MaskedArray):
        raise TypeError("a masked array cannot be sent: fill it with NaN, and submit with missing='nan'")
    array = np.asanyarray(source)
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise TypeError(f"an array of {array.dtype} is not a tensor of numbers; convert it with .astype(float)")
    described = np.lib.format.header_data_from_array_1_0(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, described)
    order: Literal["F", "C"] = "F" if described["fortran_order"] else "C"

    def chunks() -> Iterator[bytes]:
        yield header.getvalue()
        entries = max(1, CHUNK // array.itemsize)
        pieces = np.nditer(array, ("external_loop", "buffered", "zerosize_ok"), buffersize=entries, order=order)
        for piece in pieces:
            yield np.asarray(piece).tobytes()

    return Content(len(header.getvalue()) + array.nbytes, chunks)
