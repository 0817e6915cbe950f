"""Standardised residuals: independent and standard normal if the assumed noise is right."""

from dataclasses import dataclass

import numpy as np

from sparse_ncp.solvers.studies.fitting.candidates import Judge
from sparse_ncp.solvers.studies.fitting.fits import Factors, model

# Correlation of neighbouring residuals below which they count as white.
WHITE = 0.1
# Largest excess kurtosis of residuals that counts as normal.
HEAVY_TAIL = 0.5
# Standardised residuals are clipped here: a count where the model is zero would outweigh any number of others.
FARTHEST = 5.0


@dataclass(frozen=True)
class Residuals:
    """Statistics of the standardised residuals of a model, over the observed entries."""

    correlations: tuple[float, ...]  # of neighbours along each mode; 0 where a mode has no neighbours
    kurtosis: float

    @classmethod
    def of(cls, judge: Judge, factors: Factors, random: np.random.Generator) -> "Residuals":
        data = judge.data
        standard = judge.noise.residual(data.entries, data.select(model(factors)), random)
        standard = np.clip(standard, -FARTHEST, FARTHEST)
        square = max(1.0, float(np.square(standard).mean()))  # residuals smaller than the noise need no explanation
        placed = np.zeros(data.X.shape)
        placed[... if data.observed is None else data.observed] = (
            standard.reshape(data.X.shape) if data.observed is None else standard
        )
        correlations = []
        for mode in range(placed.ndim):
            lines = np.moveaxis(placed, mode, 0)
            pairs = lines[1:].size
            if data.observed is not None:
                seen = np.moveaxis(data.observed, mode, 0)
                pairs = int(np.count_nonzero(seen[1:] & seen[:-1]))
            correlations.append(float((lines[1:] * lines[:-1]).sum()) / max(1, pairs) / square)
        return cls(tuple(correlations), float((standard**4).mean()) / square**2 - 3)

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
        return None
