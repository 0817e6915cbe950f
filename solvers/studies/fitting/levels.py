"""The level of the noise, one for each index of every mode: channels, samples and times are seldom equally noisy.

The variance of an entry is modelled as the product of the levels of its indices. Dividing the tensor by their square
roots leaves noise of nearly one level, and the same components, whose rows are divided too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparse_ncp.solvers.studies.fitting.fits import Data, Factors, Fit, descend, model, overfit
from sparse_ncp.solvers.studies.fitting.noise import Clipped, expected_square
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.scan import Booleans

# Rounds of estimating levels and refitting, and sweeps of each refit; rounds over the modes within each.
ROUNDS, REFIT_SWEEPS, MODE_ROUNDS = 3, 40, 6
# A level counts as if this many more entries of the mean variance had been observed, and levels stay in this range.
SHRINKAGE, LOWEST, HIGHEST = 5, 1e-3, 1e3
SWEEPS, TOLERANCE = 80, 1e-5


@dataclass(frozen=True)
class Scaling:
    """Standard deviations of the noise, one for each index of each mode, by whose product the tensor is divided."""

    deviations: tuple[Float64, ...]

    @classmethod
    def none(cls, shape: Sequence[int]) -> "Scaling":
        return cls(tuple(np.ones(length) for length in shape))

    def apply(self, X: Float64) -> Float64:
        return np.asarray(X / model([scale[:, None] for scale in self.deviations]))

    def restore(self, factors: Factors) -> Factors:
        """Return factors of the tensor, given those of the tensor that was divided."""
        return tuple(A * scale[:, None] for A, scale in zip(factors, self.deviations, strict=True))

    def divide(self, factors: Factors) -> Factors:
        return tuple(A / scale[:, None] for A, scale in zip(factors, self.deviations, strict=True))


def first_overfit(
    data: Data, rank: int, is_clipped: bool, is_separable: bool, random: np.random.Generator
) -> tuple[Scaling, Data, Fit]:
    """Fit an overfit and estimate the noise in turns, since each needs the other.

    Returns the scaling, which is none unless the noise is separable, the scaled data with the deviation of the noise if
    it is clipped, and the fit to these data.
    """
    X, fit = data.X, overfit(data, rank, random, SWEEPS, TOLERANCE)
    scaling = Scaling.none(X.shape)
    for _ in range(ROUNDS if is_separable else 1):
        if is_separable:
            residual = np.square(data.X - model(fit.factors))
            if is_clipped:
                deviation = _deviation(data, fit)
                zero = data.X <= 0
                residual[zero] = expected_square(model(fit.factors)[zero], deviation)
            more = Scaling(tuple(map(np.sqrt, separable_variance(residual, data.observed))))
            scaled = data.select(more.apply(data.X))
            size = float(np.sqrt(np.square(scaled).mean()))  # stay in units of the root mean square
            more = Scaling((more.deviations[0] * size, *more.deviations[1:]))
            pairs = zip(scaling.deviations, more.deviations, strict=True)
            scaling = Scaling(tuple(one * other for one, other in pairs))
            data = Data(scaling.apply(X), data.observed)
            fit = replace(fit, factors=more.divide(fit.factors))
        if is_clipped:
            data = replace(data, deviation=_deviation(data, fit))
        fit = descend(data, fit.factors, REFIT_SWEEPS, TOLERANCE)
    if is_clipped:
        data = replace(data, deviation=_deviation(data, fit))
    return scaling, data, fit


def separable_variance(squares: Float64, observed: Booleans | None) -> tuple[Float64, ...]:
    """Return variances, one for each index of each mode with geometric mean 1, whose product explains the squares."""
    shape = squares.shape
    counted = np.ones(shape) if observed is None else observed.astype(np.float64)
    squares = squares * counted
    typical = float(squares.sum() / counted.sum())
    variances = [np.ones(length) for length in shape]
    for _ in range(MODE_ROUNDS):
        for mode, length in enumerate(shape):
            others = tuple(other for other in range(len(shape)) if other != mode)
            weights = model([np.ones((length, 1)) if other == mode else 1 / variances[other][:, None]
                             for other in range(len(shape))])  # fmt: skip
            count = counted.sum(axis=others)
            level = ((squares * weights).sum(axis=others) + SHRINKAGE * typical) / (count + SHRINKAGE)
            geometric = np.exp(np.log(np.maximum(level, np.finfo(float).tiny)).mean())
            variances[mode] = np.clip(level / geometric, LOWEST, HIGHEST)
    return tuple(variances)


def _deviation(data: Data, fit: Fit) -> float:
    return Clipped.estimate(data.entries, data.select(model(fit.factors)), fit.parameters).deviation
