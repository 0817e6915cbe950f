"""The rule that counts components: how many stand out from the noise, and how sure that is.

A component fitted to nothing but noise gains a loss of about u = (Σ √Iₙ)², up to a constant below one, for any shape;
so the number of components is the k that minimises L(k) + 0.95 k u.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from sparse_ncp.solvers.studies.fitting.noise import Noise
from sparse_ncp.solvers.tensor.products import Float64

Confidence: TypeAlias = Literal["very", "yes", "no"]

PER_COMPONENT = 0.95
# One more component is added if it gains this much, and this many times the gain on simulated noise.
STEP_GAIN, STEP_OVER_NULL = 0.6, 1.40
# Gains over simulated noise: the least of the last component to be sure and very sure, the most of a further one.
SURE_OVER_NULL, VERY_SURE_OVER_NULL, NEXT_OVER_NULL, NEXT_DEVIATIONS = 1.8, 3.0, STEP_OVER_NULL, 3.0
# Seeds that must agree on the model: how many, with a loss how near in units of u, and how similar.
AGREEING_SEEDS, NEAR, ALIKE = 2, 0.5, 0.9
# Typical gain of a component on noise.
NOISE_GAIN = 0.5
# Correlation of neighbouring residuals below which they count as white.
WHITE = 0.1
# Largest excess kurtosis of residuals, and the range of their variance over bins of the model, that count as normal.
HEAVY_TAIL, SPREAD = 0.5, (0.67, 1.5)
# Standardised residuals are clipped here: a count where the model is zero would outweigh any number of others.
FARTHEST = 5.0
BINS = 12


def unit_gain(shape: Sequence[int]) -> float:
    """Return u, the gain of a component fitted to noise of variance one, up to a constant."""
    return math.fsum(math.sqrt(length) for length in shape) ** 2


@dataclass(frozen=True)
class Curve:
    """The loss L(k) of the best model of every k, 0 included, in units of u."""

    losses: Mapping[int, float]

    def gain(self, components: int) -> float:
        """Return the gain of one more component; zero for the largest model."""
        if components + 1 not in self.losses:
            return 0.0
        return self.losses[components] - self.losses[components + 1]

    @property
    def largest(self) -> int:
        return max(self.losses)

    def best(self) -> int:
        """Return the k that minimises L(k) + 0.95 k u."""
        return min(self.losses, key=lambda k: self.losses[k] + PER_COMPONENT * k)

    def cliff(self, noise: float) -> int:
        """Return the k after which the gain falls most steeply; gains below that of noise count as noise."""
        gains = {k: max(noise, self.gain(k)) for k in range(self.largest)}
        return max(range(1, self.largest), key=lambda k: gains[k - 1] / gains[k], default=1)


@dataclass(frozen=True)
class Null:
    """Gain of one more component on tensors simulated without it: mean and standard deviation."""

    mean: float
    deviation: float

    @property
    def most(self) -> float:
        """The largest gain that noise explains, with a margin: models of the real tensor were searched for harder."""
        return max(NEXT_OVER_NULL * self.mean, self.mean + NEXT_DEVIATIONS * self.deviation)


def steps_up(curve: Curve, components: int, null: Null) -> bool:
    """Return whether one more component gains more than simulated noise."""
    gain = curve.gain(components)
    return components < curve.largest and gain >= max(STEP_GAIN, STEP_OVER_NULL * null.mean)


def confidence(curve: Curve, components: int, nulls: Mapping[int, Null]) -> Confidence:
    """Return how clearly the last component stands out and a further one does not."""
    if components not in nulls:  # nothing to count, or the largest model there is
        return "no"
    gain, further, null = curve.gain(components - 1), curve.gain(components), nulls[components]
    last = nulls.get(components - 1, null)
    if further > null.most or gain < SURE_OVER_NULL * last.mean:
        return "no"
    return "very" if gain >= VERY_SURE_OVER_NULL * last.mean else "yes"


@dataclass(frozen=True)
class Residuals:
    """Statistics of the standardised residuals: independent and standard normal if the assumed noise is right."""

    correlations: tuple[float, ...]  # of neighbours along each mode; 0 where a mode has no neighbours
    kurtosis: float
    lowest_variance: float
    highest_variance: float  # of bins of the model's values

    @classmethod
    def of(cls, X: Float64, model: Float64, noise: Noise, random: np.random.Generator) -> "Residuals":
        standard = np.clip(noise.residual(X, model, random), -FARTHEST, FARTHEST)
        order = np.argsort(model, axis=None, kind="stable")
        bins = np.array_split(standard.ravel()[order], BINS)
        variances = [float(np.square(values).mean()) for values in bins if len(values)]
        square = max(1.0, float(np.square(standard).mean()))  # residuals smaller than the noise need no explanation
        return cls(
            tuple(_lag_one(standard, mode) / square for mode in range(X.ndim)),
            float((standard**4).mean()) / square**2 - 3,
            min(variances),
            max(variances),
        )

    @property
    def white(self) -> bool:
        return max(self.correlations) < WHITE

    def misfit(self) -> str | None:
        """Describe how the residuals differ from the assumed noise; None if they do not."""
        if not self.white:
            mode = int(np.argmax(self.correlations)) + 1
            correlation = max(self.correlations)
            return f"neighbouring residuals along mode {mode} correlate ({correlation:.2f}): the model misses structure"
        if self.kurtosis > HEAVY_TAIL:
            return f"the residuals have heavier tails than the assumed noise (excess kurtosis {self.kurtosis:.1f})"
        low, high = SPREAD
        if self.highest_variance > high or self.lowest_variance < low < self.highest_variance:
            return (
                f"the residuals' variance is between {self.lowest_variance:.2f} and {self.highest_variance:.2f} of "
                "that of the assumed noise, depending on the size of the model"
            )
        return None


def _lag_one(standard: Float64, mode: int) -> float:
    if standard.shape[mode] < 2:
        return 0.0
    lines = np.moveaxis(standard, mode, 0)
    return float((lines[1:] * lines[:-1]).mean())
