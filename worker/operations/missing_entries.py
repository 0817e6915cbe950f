"""Missing entries before a job is queued: indices without any reading, and masks that leave none."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers import InvalidInput
from sparse_ncp.solvers.runtime import Booleans, Exclusion, describe_indices, exclude_with
from sparse_ncp.worker.contract import TensorRecord

# Entries up to which a tensor or a mask is searched: some hundredths of a second of the API. The run finds the rest.
MOST_SEARCHED = 1 << 22


def unread_problems(
    tensor: NDArray[Any],
    record: TensorRecord,
    mask: Booleans | None,
    exclusion: Exclusion,
    is_nan_missing: bool,
) -> Iterator[InvalidInput]:
    """Yield the problem if no entry is observed, or none of some indices, as far as a short search shows."""
    observed = _observed(tensor, record, mask, exclusion, is_nan_missing)
    if observed is None:
        return
    by_mode = _observed_by_mode(observed)
    if not by_mode[0].any():
        if mask is None:  # a tensor of NaN alone is no tensor
            yield InvalidInput("exclude", "leaves only entries that are NaN", "exclude less")
        else:
            problem = "is true only where entries are NaN or excluded"
            yield InvalidInput("mask.tensor_id", problem, "upload one that is true at readings, or exclude less")
        return
    pairs = enumerate(zip(by_mode, exclusion.kept, strict=True), start=1)
    unread = {mode: kept[~read].tolist() for mode, (read, kept) in pairs if len(read) == len(kept)}
    unread = {mode: indices for mode, indices in unread.items() if indices}
    if unread:
        before = exclusion.by_mode()
        remedy = f"leave these indices out: {exclude_with(before, unread)}"
        try:
            Exclusion.of({mode: (*before.get(mode, ()), *some) for mode, some in unread.items()}, tensor.shape)
        except InvalidInput as error:
            remedy = f"give more readings: leaving these indices out {error.problem}"
        yield InvalidInput("tensor_id", f"{describe_indices(unread)} no observed entry", remedy)


def _observed(
    tensor: NDArray[Any], record: TensorRecord, mask: Booleans | None, exclusion: Exclusion, is_nan_missing: bool
) -> Booleans | None:
    """Return what is known to be observed of the kept entries; None if nothing is known to be missing."""
    observed = None if mask is None or mask.size > MOST_SEARCHED else exclusion.array(mask)
    if tensor.size > MOST_SEARCHED or (mask is None and not is_nan_missing):
        return observed
    smallest = math.prod(exclusion.kept_shape) // max(exclusion.kept_shape)  # number of entries of an index
    if not record.missing or (mask is None and record.missing < smallest):
        return observed
    numbers: Booleans = exclusion.array(~np.isnan(tensor))
    return numbers if observed is None else numbers & observed


def _observed_by_mode(observed: Booleans) -> list[Booleans]:
    """Return for each mode which indices have an observed entry, in two passes at most over a tensor of any shape."""
    reverse = not observed.flags.c_contiguous
    rest, found = observed.T if reverse else observed, []
    for length in rest.shape:
        rows = rest.reshape(length, -1)
        found.append(np.logical_or.reduce(rows, axis=1))
        rest = np.logical_or.reduce(rows, axis=0)
    return found[::-1] if reverse else found
