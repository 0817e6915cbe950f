"""The tensor of a choice: checked, and as the fits need it."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.studies.fitting.fits import Data
from sparse_ncp.solvers.studies.settings import ChoiceSettings
from sparse_ncp.solvers.studies.validation import check_validation, fitted_part
from sparse_ncp.solvers.tensor.exclusion import Exclusion
from sparse_ncp.solvers.tensor.scan import Booleans
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.tensor.validation import check_mask, prepare_tensor

# An overfit has at most this fraction of the tensor's entries as parameters, or it would fit the noise.
LARGEST_SHARE = 1 / 4


class Inputs(NamedTuple):
    """A tensor and a mask without what is left out, and the data that are fitted, with a root mean square of 1."""

    tensor: NDArray[Any]
    mask: Booleans | None
    data: Data
    unit: float


def prepare(tensor: NDArray[Any], settings: ChoiceSettings, mask: NDArray[np.bool_] | None, pool: Threads) -> Inputs:
    """Check a tensor, and find out which entries are readings; InvalidInput if it cannot be studied."""
    exclusion = Exclusion.of(settings.exclude, np.shape(tensor))
    tensor, mask = fitted_part(tensor, settings, mask)
    checked = prepare_tensor(tensor, "float64", pool, mask, settings.missing, settings.negative)
    if settings.samples_mode > len(checked.shape):
        remedy = f"count the modes from 1 to {len(checked.shape)}"
        raise InvalidInput("samples_mode", f"is {settings.samples_mode} for {len(checked.shape)} modes", remedy)
    array = tensor if isinstance(tensor, np.ma.MaskedArray) else np.asarray(tensor)
    entries = np.array(np.ma.getdata(array), np.float64)
    observed = ~(np.isnan(entries) | np.ma.getmaskarray(array))
    if mask is not None:
        mask = check_mask(mask, entries.shape)
        observed &= mask
    entries[~observed] = 0.0
    check_validation(settings.validation, entries.shape, observed, exclusion)
    if settings.noise in ("clipped", "counts") and (entries < 0).any():
        remedy = "give auto or gaussian, or set them to zero with sparse_ncp.clip(tensor)"
        raise InvalidInput("noise", f"is {settings.noise} for a tensor with negative entries", remedy)
    count = int(np.count_nonzero(observed))
    if int(LARGEST_SHARE * count / sum(entries.shape)) < 2:
        remedy = "use a larger one, or leave out indices with few readings: even two components would fit its noise"
        problem = f"of shape {entries.shape} has too few readings, {count}, to choose the number of components"
        raise InvalidInput("tensor", problem, remedy)
    unit = checked.norm / math.sqrt(count)
    X = np.ascontiguousarray(np.moveaxis(entries / unit, settings.samples_mode - 1, 0))
    observed = np.ascontiguousarray(np.moveaxis(observed, settings.samples_mode - 1, 0))
    return Inputs(array, mask, Data(X, None if observed.all() else observed), unit)
