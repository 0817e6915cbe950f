"""An array in a file: what its header says, and how its entries are read."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ncp_client.formats.errors import UnreadableFile

# How many modes a tensor may have.
MIN_ORDER, MAX_ORDER = 2, 8


@dataclass(frozen=True)
class Variable:
    """An array in a file, as its header describes it.

    Attributes
    ----------
    name : str
        Its name; empty in a format whose files have one array without a name.
    shape : tuple of int
        Lengths of the modes.
    dtype : dtype
        Type and byte order of the entries.
    order : {"C", "F"}
        Which mode varies fastest: the last or the first.
    offset : int
        Where the entries begin in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return math.prod(self.shape) * self.dtype.itemsize


def check_tensor(variable: Variable) -> None:
    """Raise UnreadableFile unless the array has real numbers and the shape of a tensor."""
    order = len(variable.shape)
    if variable.dtype.kind not in "fiub":
        raise UnreadableFile(f"has dtype {variable.dtype}", "save real numbers: a float, integer or bool array")
    if not MIN_ORDER <= order <= MAX_ORDER:
        raise UnreadableFile(f"has order {order}", f"save an array with {MIN_ORDER} to {MAX_ORDER} modes")
    if 0 in variable.shape:
        empty = variable.shape.index(0) + 1
        raise UnreadableFile(f"mode {empty} is empty", "give every mode a length of 1 or more")


def map_array(path: Path, variable: Variable) -> NDArray[Any]:
    """Return an array of a file as a read-only memory map."""
    return np.memmap(path, variable.dtype, "r", variable.offset, variable.shape, variable.order)


def join_blocks(blocks: Iterable[bytes], variable: Variable) -> NDArray[Any]:
    """Return an array in memory from its entries, which come in order and in pieces of any length."""
    entries = np.empty(variable.nbytes, np.uint8)
    filled = 0
    for block in blocks:
        entries[filled : filled + len(block)] = np.frombuffer(block, np.uint8)
        filled += len(block)
    return entries.view(variable.dtype).reshape(variable.shape, order=variable.order)
