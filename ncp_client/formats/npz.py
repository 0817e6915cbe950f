"""Archives of numpy, `.npz`: a zip file with one `.npy` file per array. Here those that this project writes."""

import zipfile
from typing import Any, BinaryIO

from numpy.typing import NDArray

from ncp_client.formats import npy
from ncp_client.formats.variable import join_blocks


def read_npz(file: BinaryIO) -> dict[str, NDArray[Any]]:
    """Return all arrays of an archive by their names, in their order.

    Unlike `numpy.load`, it may be used by several threads at once.

    Raises
    ------
    UnreadableFile
        An entry is not a `.npy` file with plain values.
    zipfile.BadZipFile
        The archive is damaged.

    Examples
    --------
    >>> import io
    >>> import numpy as np
    >>> from ncp_client.formats.npz import read_npz
    >>> file = io.BytesIO()
    >>> np.savez(file, A1=np.ones((3, 2)))
    >>> read_npz(file)["A1"].shape
    (3, 2)
    """
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as member:
                variable = npy.read_header(member, entry.file_size)  # type: ignore[arg-type]
                arrays[entry.filename.removesuffix(".npy")] = join_blocks(npy.blocks(member, variable), variable)  # type: ignore[arg-type]
    return arrays
