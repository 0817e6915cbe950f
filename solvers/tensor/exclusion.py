"""Leave indices of some modes out of a tensor, of its mask and of its factors."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.scan import Booleans, Occurrence

Indices: TypeAlias = NDArray[np.intp]
Number = TypeVar("Number", bound=np.floating[Any])
# Fewer indices of a mode do not show how a component varies along it.
FEWEST_KEPT = 2


@dataclass(frozen=True)
class Exclusion:
    """The indices of every mode of a tensor that are kept, and those that are left out, from 0 and in order."""

    shape: tuple[int, ...]
    kept: tuple[Indices, ...]
    excluded: tuple[Indices, ...]

    @classmethod
    def of(cls, exclude: Mapping[int, Sequence[int | str]] | None, shape: Sequence[int]) -> "Exclusion":
        """Return the exclusion that settings ask for, with modes from 1; raise InvalidInput if it does not fit."""
        excluded = [np.empty(0, np.intp) for _ in shape]
        for mode, entries in (exclude or {}).items():
            if not 1 <= mode <= len(shape):
                problem = f"names mode {mode} of a tensor with {len(shape)}"
                raise InvalidInput("exclude", problem, f"count the modes from 1 to {len(shape)}")
            excluded[mode - 1] = _indices(mode, entries, shape[mode - 1])
        kept = tuple(np.setdiff1d(np.arange(length), out) for length, out in zip(shape, excluded, strict=True))
        return cls(tuple(shape), kept, tuple(excluded))

    def __bool__(self) -> bool:
        return any(out.size for out in self.excluded)

    @property
    def kept_shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.kept))

    def by_mode(self) -> dict[int, tuple[int, ...]]:
        """Return the excluded indices by mode, from 1, as settings have them."""
        return {mode: tuple(out.tolist()) for mode, out in enumerate(self.excluded, start=1) if out.size}

    def array(self, tensor: NDArray[Any]) -> NDArray[Any]:
        """Return the entries at kept indices: a view where they lie together, else a copy in the same memory order.

        A mode of length 1 of a mask stays as it is.
        """
        every = [self._kept_in(mode, length) for mode, length in enumerate(tensor.shape)]
        if self.is_view(tensor):
            return tensor[tuple(slice(own[0], own[-1] + 1) for own in every)]
        reverse = _is_reversed(tensor)
        slowest = tensor.ndim - 1 if reverse else 0
        others = [mode for mode in range(tensor.ndim) if mode != slowest]
        order: Literal["C", "F"] = "F" if reverse else "C"
        kept: NDArray[Any] = np.empty([len(own) for own in every], tensor.dtype, order)
        if isinstance(tensor, np.ma.MaskedArray):
            kept = np.ma.masked_array(kept, np.zeros(kept.shape, bool))
        rest = np.ix_(*(every[mode] for mode in others))
        for place, index in enumerate(every[slowest]):  # slice by slice: what is copied on the way stays small
            to: tuple[Any, ...] = (..., place) if reverse else (place,)
            kept[to] = tensor[(..., index) if reverse else (index,)][rest]
        return kept

    def mask(self, observed: Booleans | None) -> Booleans | None:
        """Return a mask of observed entries at kept indices."""
        return None if observed is None else self.array(observed)

    def whole_mask(self, observed: Booleans | None) -> Booleans | None:
        """Return a mask of kept indices for the whole tensor, true at excluded ones."""
        if observed is None:
            return None
        for mode, (length, own) in enumerate(zip(self.shape, self.kept, strict=True)):
            if observed.shape[mode] == len(own) < length:
                whole = np.ones((*observed.shape[:mode], length, *observed.shape[mode + 1 :]), bool)
                whole[(slice(None),) * mode + (own,)] = observed
                observed = whole
        return observed

    def masked(self, observed: Booleans | None) -> Booleans:
        """Return a mask of the whole tensor, false at excluded indices."""
        whole = np.ones((1,) * len(self.shape), bool) if observed is None else observed
        for mode, out in enumerate(self.excluded):
            if out.size:
                kept = np.ones(self.shape[mode], bool)
                kept[out] = False
                whole = whole & kept.reshape([-1 if other == mode else 1 for other in range(len(self.shape))])
        return whole

    def is_view(self, tensor: NDArray[Any]) -> bool:
        """Return whether the kept entries are contiguous: only ends of the slowest mode are left out."""
        slowest = tensor.ndim - 1 if _is_reversed(tensor) else 0
        own = self._kept_in(slowest, tensor.shape[slowest])
        return bool(own[-1] - own[0] + 1 == len(own)) and all(
            len(self._kept_in(mode, length)) == length for mode, length in enumerate(tensor.shape) if mode != slowest
        )

    def slice_of(self, tensor: NDArray[Any], mode: int, index: int) -> NDArray[Any]:
        """Return one slice of a mode, at the kept indices of the other modes; it keeps all modes."""
        picks = [self._kept_in(other, length) for other, length in enumerate(tensor.shape)]
        picks[mode] = np.array([min(index, tensor.shape[mode] - 1)])
        own = np.moveaxis(tensor, mode, 0)[picks[mode][0]]
        rest = [pick for other, pick in enumerate(picks) if other != mode]
        if any(len(pick) < length for pick, length in zip(rest, own.shape, strict=True)):
            own = own[np.ix_(*rest)]
        return np.expand_dims(own, mode)

    def rows(self, factor: NDArray[Any], mode: int, field: str) -> NDArray[Any]:
        """Return the rows of a whole factor at kept indices; raise InvalidInput if it has another length."""
        A = np.asarray(factor)
        if A.ndim != 2 or len(A) != self.shape[mode]:
            problem = f"has shape {A.shape} for a mode of {self.shape[mode]}"
            raise InvalidInput(field, problem, "give a row for every index, the excluded ones too")
        return A[self.kept[mode]]

    def located(self, found: Occurrence) -> Occurrence:
        """Return an occurrence among kept entries with its index in the whole tensor."""
        return Occurrence(
            found.count, tuple(int(own[index]) for own, index in zip(self.kept, found.first, strict=False))
        )

    def _kept_in(self, mode: int, length: int) -> Indices:
        return self.kept[mode] if length == self.shape[mode] else np.arange(length)


def _is_reversed(tensor: NDArray[Any]) -> bool:
    return tensor.flags.f_contiguous and not tensor.flags.c_contiguous


def without_indices(tensor: NDArray[Any], exclude: Mapping[int, Sequence[int | str]] | None) -> NDArray[Any]:
    """Return a tensor without these indices, which are given by mode, counted from 1."""
    return Exclusion.of(exclude, tensor.shape).array(tensor) if exclude else tensor


def exclude_with(*parts: Mapping[int, Sequence[int | str]]) -> str:
    """Return the exclusions of several mappings together as text that can be pasted, as in `exclude={"1": [2, 5]}`."""
    modes = sorted({mode for part in parts for mode in part})
    together = {
        str(mode): list(dict.fromkeys(entry for part in parts for entry in part.get(mode, ()))) for mode in modes
    }
    return f"exclude={json.dumps(together, ensure_ascii=False)}"


def whole_factors(
    factors: Sequence[NDArray[Number]], exclude: Mapping[int, Sequence[int | str]] | None, rows: Mapping[int, Array]
) -> list[NDArray[Number]]:
    """Return factors with a row for every index: those of excluded indices from `rows` (by mode, from 1), else zero."""
    whole = list(factors)
    for mode, entries in (exclude or {}).items():
        A = factors[mode - 1]
        excluded = _indices(mode, entries, len(A) + len(entries))
        whole[mode - 1] = np.zeros((len(A) + len(excluded), A.shape[1]), A.dtype)
        whole[mode - 1][np.setdiff1d(np.arange(len(whole[mode - 1])), excluded)] = A
        if mode in rows:
            whole[mode - 1][excluded] = rows[mode]
    return whole


def _indices(mode: int, entries: Sequence[int | str], length: int) -> Indices:
    """Return the indices of a mode in order; raise InvalidInput if they do not fit its length."""
    label = next((entry for entry in entries if isinstance(entry, str)), None)
    if label is not None:
        remedy = f"give indices from 0 to {length - 1}; labels are for tensors with axes, on a server"
        raise InvalidInput("exclude", f"names {label!r} in mode {mode}", remedy)
    found = sorted(int(entry) for entry in entries)
    if found and found[-1] >= length:
        problem = f"has index {found[-1]} of mode {mode}, whose length is {length}"
        raise InvalidInput("exclude", problem, f"give indices from 0 to {length - 1}")
    left = length - len(found)
    if found and left < FEWEST_KEPT:
        problem = f"leaves {left or 'none'} of the {length} indices of mode {mode}"
        raise InvalidInput("exclude", problem, f"exclude at most {max(0, length - FEWEST_KEPT)} of them")
    return np.array(found, np.intp)
