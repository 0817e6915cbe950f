"""How well models predict entries that they were not fitted to: single ones, and whole fibres along each mode.

Noise that neighbours share cannot be predicted from the rest of a fibre only where the whole fibre is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparse_ncp.solvers.studies.fitting.candidates import Candidate, Judge, chain
from sparse_ncp.solvers.studies.fitting.fits import Data, Factors, descend, model, overfit
from sparse_ncp.solvers.tensor.scan import Booleans

# Fraction of the entries or fibres that are left out.
SHARE = 0.12
# Sweeps of the overfit to what is left, after each drop, and of the fits from its own and from the whole model.
OVERFIT_SWEEPS, CHAIN_SWEEPS, COLD_SWEEPS, WARM_SWEEPS, TOLERANCE = 50, 30, 20, 40, 1e-5
TRIED = 4
# The cold model is taken unless the loss of the warm one is lower by more than this fraction.
SAME_LOSS = 1e-4
# Largest squared standardised error of one entry: a single outlier must not dominate.
LARGEST_ERROR = 25.0


@dataclass(frozen=True)
class Prediction:
    """Mean squared standardised errors on the entries left out, by number of components.

    `cold` has those of models fitted without ever seeing these entries; `better` takes for each number the model with
    the lower loss on the other entries, that one or the model of all entries after a refit.
    """

    better: Mapping[int, float]
    cold: Mapping[int, float]


def left_out(data: Data, mode: int | None, random: np.random.Generator) -> Booleans:
    """Draw observed entries, or whole fibres along a mode, but never the last ones of an index of any mode."""
    shape = data.X.shape
    drawn = random.random([1 if axis == mode else length for axis, length in enumerate(shape)]) < SHARE
    out = np.broadcast_to(drawn, shape).copy()
    if data.observed is not None:
        out &= data.observed
    for axis in range(out.ndim):
        others = tuple(other for other in range(out.ndim) if other != axis)
        kept = ~out if data.observed is None else data.observed & ~out
        out &= kept.any(axis=others, keepdims=True)
    return out


def predict(
    judge: Judge, best: Mapping[int, Candidate], rank: int, mode: int | None, random: np.random.Generator
) -> Prediction | None:
    """Leave entries out, and predict them with models of every number of components; None if none can be left out."""
    data = judge.data
    out = left_out(data, mode, random)
    if not out.any():
        return None
    variance = np.ones(data.X.shape)
    variance[... if data.observed is None else data.observed] = (
        judge.variance.reshape(data.X.shape) if data.observed is None else judge.variance
    )
    rest = data.without(out)
    training = Judge(rest, judge.noise, rest.select(variance))
    exact, spread = data.X[out], variance[out]
    own = chain(rest, overfit(rest, rank, random, OVERFIT_SWEEPS, TOLERANCE), max(best), CHAIN_SWEEPS, TRIED).models

    def error(factors: Factors) -> float:
        """Return the mean squared error; that of a clipped reading is −2 log of the probability that it is clipped."""
        predicted = model(factors)[out]
        errors = np.square(exact - predicted) / spread
        if data.deviation is not None:
            from scipy.special import log_ndtr

            zero = exact <= 0
            errors[zero] = -2 * log_ndtr(-predicted[zero] / data.deviation)
        return float(np.minimum(errors, LARGEST_ERROR).mean())

    better, cold = {}, {}
    for k, candidate in best.items():
        warm = descend(rest, candidate.factors, WARM_SWEEPS, TOLERANCE).factors
        if k not in own:
            better[k] = error(warm)
            continue
        alone = descend(rest, own[k], COLD_SWEEPS, TOLERANCE).factors
        cold[k] = error(alone)
        is_better = training.loss(alone) <= training.loss(warm) * (1 + SAME_LOSS)
        better[k] = cold[k] if is_better else error(warm)
    return Prediction(better, cold)
