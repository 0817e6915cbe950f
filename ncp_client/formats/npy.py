"""The `.npy` format of numpy: a magic string, a header in text, and the entries as they are in memory.

Headers are parsed here rather than by numpy, which uses Python's own parser: that of CPython 3.11 fails when several
threads use it at the same time, and it takes expressions that no header needs.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from ncp_client.formats.errors import UnreadableFile
from ncp_client.formats.unsupported import SAVE, SEND_RAW, refusal
from ncp_client.formats.variable import Variable

MAGIC = b"\x93NUMPY"
START_BYTES = 512
BLOCK_BYTES = 1 << 20
# numpy writes a few hundred bytes; a longer header is meant to exhaust the parser.
MAX_HEADER = 64 << 10
# Of a mode: what an index can address.
MAX_LENGTH = (1 << 63) - 1
AGAIN = "check that the file is complete, and upload it again"
STRIPPED = ("has lost its line ends and NUL bytes on the way, as curl -d does to a file", SEND_RAW)
REAL = "save real numbers: a float, integer or bool array"
BLANKS = " \t\r\n\f"
SPACE = rf"[{BLANKS}]*"
STRING = r"""'[^'\\\n]*'|"[^"\\\n]*\""""
# The dictionary in a header. A value is a string, a word, or a tuple or list without further ones in it.
OPENING = re.compile(rf"{SPACE}\{{")
ENTRY = re.compile(
    rf"{SPACE}({STRING}){SPACE}:{SPACE}({STRING}|[\w.+-]+|\([^()]*\)|\[[^\[\]]*\]){SPACE}(?:,|(?=\}}))", re.ASCII
)
CLOSING = re.compile(rf"{SPACE}\}}{SPACE}")
STRUCTURED = re.compile(rf"{SPACE}['\"]descr['\"]{SPACE}:{SPACE}[\[(]")
# Python 2 wrote a long integer with an L.
LENGTH = re.compile(r"(0|[1-9][0-9]*)(L?)")
# The name of a simple type: those with commas or parentheses are of structured ones, and "a" is a former name of "S".
DTYPE = re.compile(r"[<>=|]?(?!a[0-9]*$)(?:\?|[A-Za-z]\w*)(?:\[\w*\])?", re.ASCII)


class Header(NamedTuple):
    """The text of a header, and where it ends."""

    text: str
    version: int
    end: int


def recognises(start: bytes) -> bool:
    """Return whether a file begins as a `.npy` file does."""
    return start.startswith(MAGIC)


def variables(file: BinaryIO) -> tuple[Variable, ...]:
    """Return the array of the file."""
    return (read_header(file),)


def blocks(file: BinaryIO, variable: Variable) -> Iterator[bytes]:
    """Yield the entries as they are stored, piece by piece."""
    file.seek(variable.offset)
    left = variable.nbytes
    while left:
        block = file.read(min(BLOCK_BYTES, left))
        if not block:
            raise UnreadableFile(f"is truncated: its last {left} bytes are missing", AGAIN)
        left -= len(block)
        yield block


def read_header(file: BinaryIO, size: int | None = None) -> Variable:
    """Read the header of a file from its beginning, and compare it with the length of the file; no entry is read.

    Parameters
    ----------
    file : BinaryIO
        The file, at its beginning.
    size : int, optional
        Its length, if that is known.

    Raises
    ------
    UnreadableFile
        This is not a whole `.npy` file, or its entries are not plain values of one type.
    """
    header = _read_text(file)
    fields = _parse(header)
    dtype = _dtype(fields["descr"])
    shape = _shape(fields["shape"], header.version)
    if fields["fortran_order"] not in ("True", "False"):
        raise UnreadableFile("has a fortran_order that is neither True nor False", SAVE)
    order: Literal["C", "F"] = "F" if fields["fortran_order"] == "True" else "C"
    variable = Variable("", shape, dtype, order, header.end)
    found = file.seek(0, 2) if size is None else size
    expected = header.end + variable.nbytes
    if found < expected and not header.text.endswith("\n"):  # numpy ends it so
        raise UnreadableFile(*STRIPPED)
    if found != expected:
        word = "truncated" if found < expected else "padded"
        raise UnreadableFile(f"is {word}: it has {found} bytes, its header asks for {expected}", AGAIN)
    return variable


def _read_text(file: BinaryIO) -> Header:
    start = file.read(START_BYTES)
    if not recognises(start):
        raise refusal(start)
    if len(start) < 8 or start[7]:  # no version ends in another number: the NUL that was here is gone
        raise UnreadableFile(*STRIPPED)
    major = start[6]
    if major not in (1, 2, 3):
        raise UnreadableFile(f"is .npy version {major}.0", "save it in version 1.0, 2.0 or 3.0")
    begin = 10 if major == 1 else 12
    length = int.from_bytes(start[8:begin], "little")
    if length > MAX_HEADER:
        raise UnreadableFile(f"has a header of {length} bytes, more than {MAX_HEADER}", SAVE)
    end = begin + length
    raw = start[begin:end]
    if end > len(start) == START_BYTES:
        raw += file.read(end - START_BYTES)
    if len(raw) < length or len(start) < begin:
        raise UnreadableFile("ends inside its header", AGAIN)
    try:
        return Header(raw.decode("utf-8" if major == 3 else "latin-1"), major, end)
    except UnicodeDecodeError as error:
        raise UnreadableFile("has a header that is not text", SAVE) from error


def _parse(header: Header) -> dict[str, str]:
    """Split a header into its three fields, whose values are still text. Nothing is evaluated."""
    text = header.text
    fields: list[tuple[str, str]] = []
    opening = OPENING.match(text)
    position = opening.end() if opening else 0
    while opening and (entry := ENTRY.match(text, position)):
        fields.append((entry[1][1:-1], entry[2]))
        position = entry.end()
    if opening and STRUCTURED.match(text, position):
        raise UnreadableFile("has a structured dtype", REAL)
    if not opening or not CLOSING.fullmatch(text, position):
        if "'shape'" in text and not text.endswith("\n"):
            raise UnreadableFile(*STRIPPED)
        raise UnreadableFile("has a header that cannot be read", SAVE)
    if sorted(key for key, _ in fields) != ["descr", "fortran_order", "shape"]:
        raise UnreadableFile("has a header without exactly descr, fortran_order and shape", SAVE)
    return dict(fields)


def _dtype(value: str) -> np.dtype[Any]:
    """Return the type of the entries. numpy is only asked for simple names, which it looks up."""
    if value[0] in "([":
        raise UnreadableFile("has a structured dtype", REAL)
    try:
        if value[0] not in "'\"" or not DTYPE.fullmatch(value[1:-1]):
            raise TypeError("this is not the name of a simple type")
        dtype = np.dtype(value[1:-1])
    except (TypeError, ValueError) as error:
        raise UnreadableFile(f"has an unknown dtype {value[:40]}", REAL) from error
    if dtype.hasobject:
        raise UnreadableFile("holds pickled Python objects, which are never loaded", REAL)
    if dtype.itemsize == 0:
        raise UnreadableFile(f"has a dtype {value[:40]} without a size", REAL)
    return dtype


def _shape(value: str, version: int) -> tuple[int, ...]:
    texts = [text.strip(BLANKS) for text in value[1:-1].split(",")]
    if not texts[-1]:  # after the last comma, or in ()
        texts.pop()
    lengths = [LENGTH.fullmatch(text) for text in texts]
    is_tuple = value[0] == "(" and ("," in value or not texts)
    if not is_tuple or any(length is None or (length[2] and version == 3) for length in lengths):
        raise UnreadableFile("has a shape that is not a tuple of lengths", SAVE)
    digits = [length[1] for length in lengths if length is not None]
    for mode, text in enumerate(digits, start=1):
        if len(text) > len(str(MAX_LENGTH)) or int(text) > MAX_LENGTH:
            raise UnreadableFile(f"mode {mode} is longer than any file", SAVE)
    return tuple(map(int, digits))
