"""Bytes that are almost a `.npy` file: a valid one, damaged in one of many ways."""

import gzip
import io
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Random = random.Random
DTYPES = ("<f8", ">f8", "<f4", ">f4", "<f2", "|b1", "|u1", "|i1", "<i2", ">i4", "<i8", ">u8", "<u2", "<f16")
ODD_DTYPES = (
    "<c16", "|O", "O", "<M8[ns]", "<m8[s]", "|V8", "|S3", "<U4", "f8", "=f8", "float", "", " ", "<f9", "<f8,<f8",
    "(2,)<f8", "<f8 ", "d", "g", "void", "object", "%s", "\\x00", "é", "a" * 3000, "<i1", "!f8", "|f8", "|b2", "?",
    "p", "e", "l", "<f8\\n",
)  # fmt: skip
SHAPES = (
    "()", "(3,)", "(0, 3)", "(-1, 4)", f"({10**30}, 2)", f"({2**63}, 2)", f"({2**32}, {2**32})", "('a', 2)", "(2.0, 3)",
    "(True, 2)", "[2, 3]", "None", "6", "((2, 3),)", "(1,) * 3", f"({'1, ' * 8})",
    f"({'1, ' * 9})", f"({'1, ' * 5000})",
    "(2, 3", "{2, 3}", "(2, 3, None)", "(1_0, 2)", "(0x2, 3)", "(1e3, 2)", "(2j, 3)", "(-0, 3)", "(- 2, 3)", "(2, +3)",
)  # fmt: skip
ODD_HEADERS = (
    "", "{}", "[]", "{", "None", "1", "'text'", "(" * 2000, "[" * 300 + "]" * 300, "-" * 9000 + "1", "~" * 500 + "1",
    "9" * 6000, "{'descr': '<f8'}", "__import__('os').system('true')", "{**{}}", "f'{1}'",
    "{1: 2, 'descr': 3, None: 4}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), 'more': 1}", "\x00" * 50, "# comment",
    "\n\n\n", "lambda: 0",
    "{'descr': '<f8', 'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}", "b'bytes'", "...", "{[]: 1}", "{{}}",
    "{'descr': ('<f8', (2,)), 'fortran_order': False, 'shape': (2, 3)}", "1" + " + 1" * 3000, "'" + "a" * 60000 + "'",
    "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2, 3)}",
    "{'descr': None, 'fortran_order': 0, 'shape': ()}",
)  # fmt: skip
VALUES = (float("nan"), float("inf"), -float("inf"), -1.0, -0.0, 0.0, 5e-324, 1e-300, 1e300, 1.8e308)


def content(choice: Random) -> bytes:
    """One damaged file."""
    if choice.random() < 0.04:
        return choice.choice(STRANGERS)(choice)
    array = _array(choice)
    parts = _Parts.of(array, choice)
    for _ in range(choice.choice((0, 1, 1, 1, 2))):
        choice.choice(SPOIL)(parts, choice)
    whole = parts.join()
    for _ in range(choice.choice((0, 0, 0, 1, 2))):
        whole = choice.choice(DAMAGE)(whole, choice)
    return whole


class _Parts:
    """The pieces of a `.npy` file, each of which can be wrong."""

    def __init__(self, version: tuple[int, int], text: str, body: bytes) -> None:
        self.version, self.text, self.body = version, text, body
        self.declared_length: int | None = None

    @classmethod
    def of(cls, array: NDArray[Any], choice: Random) -> "_Parts":
        fortran = bool(array.flags.f_contiguous and not array.flags.c_contiguous)
        shape = ", ".join(map(str, array.shape))
        text = f"{{'descr': {array.dtype.str!r}, 'fortran_order': {fortran}, 'shape': ({shape}), }}"
        return cls(choice.choice(((1, 0), (1, 0), (2, 0), (3, 0))), text, array.tobytes("F" if fortran else "C"))

    def join(self) -> bytes:
        encoded = self.text.encode("utf-8" if self.version[0] == 3 else "latin-1", "replace")
        width = 2 if self.version[0] == 1 else 4
        padded = encoded + b" " * (-(8 + width + len(encoded) + 1) % 64) + b"\n"
        length = len(padded) if self.declared_length is None else self.declared_length
        declared = (length % (1 << 8 * width)).to_bytes(width, "little")
        return b"\x93NUMPY" + bytes(self.version) + declared + padded + self.body


def _array(choice: Random) -> NDArray[Any]:
    shape = [choice.choice((1, 1, 2, 3, 4, 7)) for _ in range(choice.choice((1, 2, 2, 3, 3, 3, 4, 5, 8)))]
    made = np.random.default_rng(choice.getrandbits(32)).random(shape)
    dtype = np.dtype(choice.choice(DTYPES))
    array = (made * (1 if dtype.kind in "fb" else 100)).astype(dtype)
    return np.asfortranarray(array) if choice.random() < 0.3 else array


def _other_dtype(parts: _Parts, choice: Random) -> None:
    """Change the type to another size, byte order or kind."""
    before = parts.text.split("'")[3] if parts.text.count("'") > 3 else ""
    parts.text = parts.text.replace(before, choice.choice((*ODD_DTYPES, *DTYPES)), 1)


def _other_shape(parts: _Parts, choice: Random) -> None:
    head, mark, _ = parts.text.partition("'shape': ")
    parts.text = f"{head}{mark}{choice.choice(SHAPES)}, }}"


def _other_order(parts: _Parts, choice: Random) -> None:
    for word in ("True", "False"):
        parts.text = parts.text.replace(word, choice.choice(("True", "False", "1", "None", "'True'", "0.0", "true")), 1)


def _other_header(parts: _Parts, choice: Random) -> None:
    parts.text = choice.choice(ODD_HEADERS)


def _other_version(parts: _Parts, choice: Random) -> None:
    parts.version = choice.choice(((0, 0), (1, 1), (2, 0), (3, 0), (4, 0), (255, 255)))


def _other_length(parts: _Parts, choice: Random) -> None:
    parts.declared_length = choice.choice((0, 1, 10, 63, 64, 65, 117, 1000, 65535, 65536, 65537, 2**31, 2**32 - 1))


def _other_entry(parts: _Parts, choice: Random) -> None:
    """Set one entry of a float64 tensor to a value that is not allowed."""
    size = len(parts.body) // 8
    if size:
        place = 8 * choice.randrange(size)
        value = np.float64(choice.choice(VALUES)).tobytes()
        parts.body = parts.body[:place] + value + parts.body[place + 8 :]


def _uniform_entries(parts: _Parts, choice: Random) -> None:
    """Set all entries to zero, one, or booleans that are neither true nor false."""
    parts.body = choice.choice((b"\x00", b"\x01", b"\x02", b"\xff", b"\x7f")) * len(parts.body)


def _cut(whole: bytes, choice: Random) -> bytes:
    return whole[: choice.randrange(len(whole) + 1)]


def _pad(whole: bytes, choice: Random) -> bytes:
    return whole + choice.randbytes(choice.choice((1, 7, 8, 100, 5000)))


def _flip(whole: bytes, choice: Random) -> bytes:
    """Flip a few bytes, mostly in the header."""
    spoilt = bytearray(whole)
    for _ in range(choice.choice((1, 1, 2, 8))):
        if spoilt:
            reach = min(len(spoilt), choice.choice((8, 12, 128, len(spoilt))))
            spoilt[choice.randrange(reach)] = choice.getrandbits(8)
    return bytes(spoilt)


def _drop(whole: bytes, choice: Random) -> bytes:
    place = choice.randrange(len(whole) + 1)
    return whole[:place] + whole[place + choice.choice((1, 2, 8, 64)) :]


def _double(whole: bytes, choice: Random) -> bytes:
    return whole + whole


def _saved(choice: Random, array: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **how)
    return buffer.getvalue()


def _archive(choice: Random) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, A1=np.ones((2, 2)))
    return buffer.getvalue()


SPOIL: tuple[Callable[[_Parts, Random], None], ...] = (
    _other_dtype, _other_shape, _other_order, _other_header, _other_version, _other_length, _other_entry,
    _uniform_entries,
)  # fmt: skip
DAMAGE: tuple[Callable[[bytes, Random], bytes], ...] = (_cut, _pad, _flip, _drop, _double)
STRANGERS: tuple[Callable[[Random], bytes], ...] = (
    lambda choice: b"",
    lambda choice: b"\x93NUMPY",
    lambda choice: choice.randbytes(choice.randrange(3000)),
    lambda choice: b"\x93NUMPY" + choice.randbytes(200),
    lambda choice: pickle.dumps(np.ones((2, 2)), protocol=choice.randrange(6)),
    lambda choice: gzip.compress(_saved(choice, np.ones((2, 2)))),
    lambda choice: _saved(choice, np.array([[{}, []]], object), allow_pickle=True),
    lambda choice: _saved(choice, np.zeros((2, 2), [("a", "<f8"), ("b", "<i4")])),
    lambda choice: _saved(choice, np.array([["a", "b"]])),
    _archive,
    lambda choice: b'{"tensor": [[1, 2], [3, 4]]}',
    lambda choice: b"a,b\n1,2\n" * 40,
)
