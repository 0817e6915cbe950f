"""The loss of the best model of every number of components, and the two numbers read from it: gain and cliff.

A component fitted to nothing but noise gains a loss of about u = (Σ √Iₙ)², up to a constant below one, for any shape.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PER_COMPONENT = 0.95
# Gains below this are noise, whatever their ratio.
NOISE_GAIN = 0.5
# The cliff is the last number whose ratio of gains is at least this fraction of the largest one.
NEARLY_STEEPEST = 0.45
# Below this gain of the second component, the first one may be all there is, and not just the mean of the tensor.
LEAST_SECOND_GAIN = 2.0


def unit_gain(shape: Sequence[int]) -> float:
    """Return u, the gain of a component fitted to noise of variance one, up to a constant."""
    return math.fsum(math.sqrt(length) for length in shape) ** 2


@dataclass(frozen=True)
class Cliff:
    """The number of components after which the gain falls most steeply, and the ratio of the two gains."""

    components: int
    ratio: float


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

    def cliff(self) -> Cliff:
        """Return the last k whose gain is nearly as many times the next one's as that of any other k.

        The first component is usually the mean of the tensor, so that k = 1 counts only where a second gains little.
        """
        gains = {k: max(NOISE_GAIN, self.gain(k - 1)) for k in range(1, self.largest + 1)}
        first = 1 if self.largest < 3 or gains[2] < LEAST_SECOND_GAIN else 2
        ratios = {k: gains[k] / gains[k + 1] for k in range(first, self.largest)}
        if not ratios:
            return Cliff(1, 1.0)
        steepest = max(ratios.values())
        last = max(k for k, ratio in ratios.items() if ratio >= NEARLY_STEEPEST * steepest)
        return Cliff(last, ratios[last])
