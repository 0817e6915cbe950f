"""Slices of a tensor or a model: some modes fixed at an index, the others thinned to a size that can be drawn."""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sparse_ncp.solvers import InvalidInput
from sparse_ncp.solvers.runtime import Array, Booleans, Float64, khatri_rao
from sparse_ncp.worker.owner_limits import FrozenModel

# Entries of one slice, whatever its number of modes: about a megabyte of JSON.
MAX_SLICE_ENTRIES = 1 << 16
FIXED_INDEX = re.compile(r" *([0-9]{1,18}) *: *([0-9]{1,18}) *")
FORMAT_HINT = "write modes from 1 and indices from 0, such as 1:3 or 1:3,4:0"


class Slice(FrozenModel):
    """A slice with every `steps[k]`-th index of the k-th mode that is not fixed."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    values: list[Any] = Field(description="nested lists in the given shape; null where an entry is missing")


class SliceSpec(NamedTuple):
    """Position of a slice: an index or a range of indices for each mode."""

    indices: tuple[int | slice, ...]

    @classmethod
    def parse(cls, fix: str, shape: Sequence[int], max_length: int, max_entries: int = MAX_SLICE_ENTRIES) -> Self:
        """Parse `fix`, such as 1:3,4:0. Keep at most `max_length` indices of a mode and `max_entries` in all."""
        fixed: dict[int, int] = {}
        for part in fix.split(",") if fix.strip() else ():
            found = FIXED_INDEX.fullmatch(part)
            if found is None:
                raise InvalidInput("fix", f"{part[:40]!r} is not a mode and an index", FORMAT_HINT)
            mode, index = int(found[1]), int(found[2])
            if not 1 <= mode <= len(shape):
                raise InvalidInput("fix", f"there is no mode {mode}", f"count the modes from 1 to {len(shape)}")
            if mode in fixed:
                raise InvalidInput("fix", f"mode {mode} is named twice", "name each mode once")
            if index >= shape[mode - 1]:
                raise InvalidInput("fix", f"mode {mode} has no index {index}", f"count from 0 to {shape[mode - 1] - 1}")
            fixed[mode] = index
        if len(fixed) == len(shape):
            raise InvalidInput("fix", "names every mode", "leave at least one mode free")
        lengths = {mode: length for mode, length in enumerate(shape, start=1) if mode not in fixed}
        steps = {mode: -(-length // max_length) for mode, length in lengths.items()}

        def kept(mode: int) -> int:
            return -(-lengths[mode] // steps[mode])

        while math.prod(map(kept, lengths)) > max_entries:
            steps[max(lengths, key=kept)] += 1
        modes = range(1, len(shape) + 1)
        return cls(tuple(fixed[mode] if mode in fixed else slice(None, None, steps[mode]) for mode in modes))

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(index.step for index in self.indices if isinstance(index, slice))

    def entries(self, tensor: NDArray[Any], mask: Booleans | None = None) -> Float64:
        """Return the entries of a tensor, NaN where they are missing."""
        found: Float64 = np.array(tensor[self.indices], np.float64)
        if mask is not None:  # its modes of length 1 are broadcast
            single = (slice(None) if isinstance(index, slice) else 0 for index in self.indices)
            choices = zip(mask.shape, self.indices, single, strict=True)
            place = tuple(only if length == 1 else index for length, index, only in choices)
            found[~np.broadcast_to(mask[place], found.shape)] = np.nan
        return found

    def model(self, factors: Sequence[Array]) -> Float64:
        """Return the entries of ⟦A¹…Aᴺ⟧ without forming the rest of it."""
        rows = [A[index].astype(np.float64) for A, index in zip(factors, self.indices, strict=True)]
        weight = np.prod([row for row in rows if row.ndim == 1], axis=0) if len(self.steps) < len(rows) else 1.0
        first, *others = (row for row in rows if row.ndim == 2)
        flat = (first * weight) @ khatri_rao(others) if others else (first * weight).sum(axis=1)
        return np.asarray(flat).reshape([len(row) for row in (first, *others)])

    def slice(self, values: Float64) -> Slice:
        listed = values.astype(object)
        listed[np.isnan(values)] = None
        return Slice(shape=values.shape, steps=self.steps, values=listed.tolist())
