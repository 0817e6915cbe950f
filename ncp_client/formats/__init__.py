"""The registry of file formats, for client and server alike. A new format is one file and one line here.

A format needs numpy and the standard library only; what else it needs is imported inside its functions.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import BinaryIO

from ncp_client.formats import npy
from ncp_client.formats.errors import UnreadableFile
from ncp_client.formats.unsupported import refusal
from ncp_client.formats.variable import MAX_ORDER, MIN_ORDER, Variable, check_tensor, join_blocks, map_array

__all__ = [
    "FORMATS",
    "MAX_ORDER",
    "MIN_ORDER",
    "START_BYTES",
    "Format",
    "UnreadableFile",
    "Variable",
    "check_tensor",
    "find_format",
    "join_blocks",
    "map_array",
]

# How much of a file is read to recognise its format.
START_BYTES = npy.START_BYTES


@dataclass(frozen=True)
class Format:
    """A file format. `FORMATS` has them by name; `tests/contracts/test_readers.py` has their promises.

    Attributes
    ----------
    title : str
        What such a file is called in a sentence.
    suffixes : tuple of str
        How the names of such files end; a file is recognised by its content alone.
    recognises : callable
        Whether a file begins as files of this format do.
    variables : callable
        Reads the headers of a file from its beginning: its arrays, in their order. No entry is read.
    blocks : callable
        Yields the entries of an array as they are stored, piece by piece.
    """

    title: str
    suffixes: tuple[str, ...]
    recognises: Callable[[bytes], bool]
    variables: Callable[[BinaryIO], tuple[Variable, ...]]
    blocks: Callable[[BinaryIO, Variable], Iterator[bytes]]


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "npy": Format("a .npy file", (".npy",), npy.recognises, npy.variables, npy.blocks),
    }
)


def find_format(file: BinaryIO) -> Format:
    """Recognise the format of a file, which is left at its beginning.

    Raises
    ------
    UnreadableFile
        No format reads such a file; the exception says what it is and what to do with it.

    Examples
    --------
    >>> import io
    >>> from ncp_client.formats import UnreadableFile, find_format
    >>> try:
    ...     find_format(io.BytesIO(b"MATLAB 5.0 MAT-file, Platform: GLNXA64"))
    ... except UnreadableFile as error:
    ...     print(error.problem)
    is a MATLAB .mat file, not a .npy file
    """
    start = file.read(START_BYTES)
    file.seek(0)
    for format in FORMATS.values():
        if format.recognises(start):
            return format
    raise refusal(start)
