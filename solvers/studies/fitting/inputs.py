"""The tensor of a choice, checked and prepared for the fits."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.studies.fitting.fits import Data
from sparse_ncp.solvers.studies.settings import ChoiceSettings, Validation
from sparse_ncp.solvers.studies.validation import check_validation, observed_entries
from sparse_ncp.solvers.tensor.exclusion import Exclusion, Indices
from sparse_ncp.solvers.tensor.gemm.out_of_core import memory_bytes
from sparse_ncp.solvers.tensor.scan import Booleans
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.tensor.validation import check_mask, prepare_tensor
from sparse_ncp.solvers.zeros import ZeroFibres, Zeros, find_zero_fibres, without_zero_fibres

# An overfit has at most this fraction of the tensor's entries as parameters, or it would fit the noise.
LARGEST_SHARE = 1 / 4
# Largest number of tensors in double precision that a choice keeps, and that each concurrent step needs.
COPIES, COPIES_PER_THREAD, MOST_STEPS = 8, 8, 12


class Inputs(NamedTuple):
    """A tensor and a mask without what is left out, and the data that are fitted, with a root mean square of 1."""

    tensor: NDArray[Any]
    mask: Booleans | None
    data: Data
    unit: float
    samples: Indices  # the numbers that the samples have in the tensor that was given
    zero_fibres: tuple[ZeroFibres, ...] = ()  # those that look like missing readings
    other: "Inputs | None" = None  # the same tensor with these zeros taken the other way


def choice_bytes(shape: Sequence[int], threads: int) -> int:
    """Return how much memory a choice takes at the most, in bytes."""
    return 8 * math.prod(shape) * (COPIES + COPIES_PER_THREAD * min(threads, MOST_STEPS))


def thinned(shape: Sequence[int], threads: int, limit: int) -> str:
    """Return the slices that thin a tensor until a choice fits into this much memory, as one would write them.

    The longest modes lose indices: the components in the others stay the same.
    """
    kept = list(shape)
    while choice_bytes(kept, threads) > limit and max(kept) > 1:
        longest = kept.index(max(kept))
        kept[longest] = -(-kept[longest] // 2)
    steps = [-(-length // count) for length, count in zip(shape, kept, strict=True)]
    return f"tensor[{', '.join(':' if step == 1 else f'::{step}' for step in steps)}]"


def prepare(tensor: NDArray[Any], settings: ChoiceSettings, mask: NDArray[np.bool_] | None, pool: Threads) -> Inputs:
    """Check a tensor, and find out which entries are readings; InvalidInput if it cannot be studied."""
    exclusion = Exclusion.of(settings.exclude, np.shape(tensor))
    shape, memory = exclusion.kept_shape, memory_bytes()
    needed = choice_bytes(shape, pool.count)
    if needed > memory:
        problem = f"of shape {shape} needs about {needed:,} bytes for a choice; {memory:,} are free"
        remedy = f"choose on part of it, such as {thinned(shape, pool.count, memory)}, which has the same components"
        raise InvalidInput("tensor", problem, remedy)
    array = tensor if isinstance(tensor, np.ma.MaskedArray) else np.asarray(tensor)
    known = None if mask is None else check_mask(mask, array.shape)
    if exclusion:
        array, known = exclusion.array(array), exclusion.mask(known)
    prepare_tensor(array, "float64", pool, known, settings.missing, settings.negative)
    if settings.samples_mode > len(shape):
        remedy = f"count the modes from 1 to {len(shape)}"
        raise InvalidInput("samples_mode", f"is {settings.samples_mode} for {len(shape)} modes", remedy)
    found = tuple(one for one in find_zero_fibres(array, known) if one.look_missing)
    masks: dict[Zeros, Booleans | None] = {"readings": known, "missing": without_zero_fibres(array, found, known)}
    inputs = _inputs(array, settings, masks[settings.zeros], exclusion)._replace(zero_fibres=found)
    turned: Zeros = "readings" if settings.zeros == "missing" else "missing"
    if not found or _largest_overfit(observed_entries(array, masks[turned])) < 2:
        return inputs
    same = settings.model_copy(update={"validation": Validation()})
    return inputs._replace(other=_inputs(array, same, masks[turned], exclusion))


def _inputs(array: NDArray[Any], settings: ChoiceSettings, mask: Booleans | None, exclusion: Exclusion) -> Inputs:
    entries, observed = np.array(np.ma.getdata(array), np.float64), observed_entries(array, mask)
    entries[~observed] = 0.0
    check_validation(settings.validation, entries.shape, observed, exclusion)
    if settings.noise in ("clipped", "counts") and (entries < 0).any():
        remedy = "give auto or gaussian, or set them to zero with sparse_ncp.clip(tensor)"
        raise InvalidInput("noise", f"is {settings.noise} for a tensor with negative entries", remedy)
    count = int(np.count_nonzero(observed))
    if _largest_overfit(observed) < 2:
        remedy = "use a larger one, or leave out indices with few readings: even two components would fit its noise"
        problem = f"of shape {entries.shape} has too few readings, {count}, to choose the number of components"
        raise InvalidInput("tensor", problem, remedy)
    unit = float(np.linalg.norm(entries)) / math.sqrt(count)
    X = np.ascontiguousarray(np.moveaxis(entries / unit, settings.samples_mode - 1, 0))
    observed = np.ascontiguousarray(np.moveaxis(observed, settings.samples_mode - 1, 0))
    samples = exclusion.kept[settings.samples_mode - 1]
    return Inputs(array, mask, Data(X, None if observed.all() else observed), unit, samples)


def _largest_overfit(observed: Booleans) -> int:
    """Return how many components an overfit to these readings may have."""
    return int(LARGEST_SHARE * np.count_nonzero(observed) / sum(observed.shape))
