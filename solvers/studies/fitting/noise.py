"""Kinds of noise, and the loss of a fit under each.

Arrays are in units of the tensor's root mean square: X has the observed entries, `model` those of ⟦A¹…Aᴺ⟧.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.products import Float64

NoiseKind: TypeAlias = Literal["gaussian", "clipped", "counts"]
NOISE_KINDS: tuple[NoiseKind, ...] = ("gaussian", "clipped", "counts")

# Bins of the model's values with a variance each, and the smallest number of entries in a bin.
BINS, PER_BIN = 12, 200
# No bin has less than this fraction of the mean variance: faint entries must not dominate.
LEAST_VARIANCE = 0.05
# Noise below this fraction of the root mean square (60 dB) looks like a fit that has not quite converged.
LEAST_DEVIATION = 1e-3
# Expected count where the model is zero: a single count there must not decide alone.
LEAST_RATE = 1e-6
# Readings count as clipped at zero if more than this fraction are exact zeros.
CLIPPED_SHARE = 0.02
# Largest count of an entry: beyond it, every floating-point number is a multiple of something.
MOST_COUNTS = 1e6
# Squared residuals of an overfit to counts, in units of what is expected of them: less, since it fits some of the
# noise, or more, if it has not converged. A quantised instrument is far from both.
COUNTS_SCATTER = (0.25, 2.5)
EM_STEPS = 20


@dataclass(frozen=True)
class Gaussian:
    """x = m + noise, whose variance depends on m: one number for each of a few bins of m."""

    edges: tuple[float, ...]  # between the bins
    variances: tuple[float, ...]
    kind: NoiseKind = "gaussian"

    @classmethod
    def estimate(cls, X: Float64, model: Float64, parameters: int) -> "Gaussian":
        """Estimate the variance from the residual of an overfit, in bins with equally many entries."""
        count = int(np.clip(X.size // PER_BIN, 1, BINS))
        edges = np.unique(np.quantile(model, np.linspace(0, 1, count + 1)[1:-1]))
        place = np.searchsorted(edges, model.ravel(), side="right")
        squares = np.bincount(place, np.square(X - model).ravel(), minlength=len(edges) + 1)
        variances = squares / np.maximum(np.bincount(place, minlength=len(edges) + 1), 1) / _free(X, parameters)
        least = max(LEAST_DEVIATION**2, LEAST_VARIANCE * float(variances.mean()))
        return cls(tuple(edges.tolist()), tuple(np.maximum(variances, least).tolist()))

    def variance(self, model: Float64) -> Float64:
        place = np.searchsorted(np.array(self.edges), model, side="right")
        return np.array(self.variances)[place]

    def loss(self, X: Float64, model: Float64, variance: Float64) -> float:
        """Return Σ (x − m)² / v, with the same v for all fits that are compared."""
        return float((np.square(X - model) / variance).sum())

    def residual(self, X: Float64, model: Float64, random: np.random.Generator) -> Float64:
        """Return the standardised residual, which is standard normal if the noise is of this kind."""
        return (X - model) / np.sqrt(self.variance(model))


@dataclass(frozen=True)
class Clipped:
    """x = max(0, m + noise) of one variance: a zero says only that m + noise was not positive."""

    deviation: float
    kind: NoiseKind = "clipped"

    @classmethod
    def estimate(cls, X: Float64, model: Float64, parameters: int) -> "Clipped":
        """Estimate σ by expectation maximisation: E (y − m)² = σ² + m σ φ/Φ for a clipped reading y."""
        zero = X <= 0
        known, below = float(np.square(X - model)[~zero].sum()), model[zero]
        deviation = max(LEAST_DEVIATION, float(np.sqrt(known / X.size)))
        for _ in range(EM_STEPS):
            hidden = expected_square(below, deviation)
            deviation = max(LEAST_DEVIATION, float(np.sqrt((known + hidden.sum()) / X.size)))
        return cls(deviation / float(np.sqrt(_free(X, parameters))))

    def variance(self, model: Float64) -> Float64:
        return np.full_like(model, self.deviation**2)

    def loss(self, X: Float64, model: Float64, variance: Float64) -> float:
        """Return −2 log likelihood, up to a constant."""
        from scipy.special import log_ndtr  # a quarter of a second to load, as below

        zero = X <= 0
        seen = np.square((X - model)[~zero] / self.deviation).sum()
        return float(seen - 2 * log_ndtr(-model[zero] / self.deviation).sum())

    def residual(self, X: Float64, model: Float64, random: np.random.Generator) -> Float64:
        """Return the standardised residual; that of a zero is drawn from the clipped part of the distribution."""
        from scipy.special import ndtr, ndtri

        zero = X <= 0
        standard = (X - model) / self.deviation
        share = random.uniform(size=int(zero.sum())) * ndtr(-model[zero] / self.deviation)
        standard[zero] = ndtri(np.maximum(share, np.finfo(float).tiny))
        return standard


@dataclass(frozen=True)
class Counts:
    """x = unit × Poisson, where m / unit counts are expected."""

    unit: float
    kind: NoiseKind = "counts"

    @classmethod
    def estimate(cls, X: Float64, model: Float64, parameters: int) -> "Counts":
        """Estimate the unit that all entries are multiples of; without one, the unit that explains the variance."""
        scatter = float(np.square(X - model).sum()) / float(X.sum()) / _free(X, parameters)
        return cls(unit_of(X) or max(scatter, LEAST_DEVIATION**2))

    def is_plausible(self, X: Float64, model: Float64) -> bool:
        """Return whether the entries scatter like counts, with squared residuals of the unit times their sum."""
        low, high = COUNTS_SCATTER
        expected = self.unit * float(model.sum())
        return low * expected < float(np.square(X - model).sum()) < high * expected

    def variance(self, model: Float64) -> Float64:
        return self.unit * model

    def loss(self, X: Float64, model: Float64, variance: Float64) -> float:
        """Return the Poisson deviance, −2 log likelihood up to a constant, which suits small counts too."""
        from scipy.special import xlogy

        counts, rate = X / self.unit, np.maximum(model / self.unit, LEAST_RATE)
        return 2 * float((xlogy(counts, counts / rate) - counts + rate).sum())

    def residual(self, X: Float64, model: Float64, random: np.random.Generator) -> Float64:
        """Return the standardised residual; that of a count is drawn from its part of the distribution."""
        from scipy.special import ndtri, pdtr

        counts, rate = np.round(X / self.unit), np.maximum(model / self.unit, LEAST_RATE)
        low = np.where(counts > 0, pdtr(np.maximum(counts - 1, 0), rate), 0.0)
        share = low + random.uniform(size=X.shape) * (pdtr(counts, rate) - low)
        tiny = np.finfo(float).eps
        return np.asarray(ndtri(np.clip(share, tiny, 1 - tiny)))


Noise: TypeAlias = Gaussian | Clipped | Counts
_ESTIMATES: dict[NoiseKind, Callable[[Float64, Float64, int], Noise]] = {
    "gaussian": Gaussian.estimate,
    "clipped": Clipped.estimate,
    "counts": Counts.estimate,
}
_CLASSES: dict[NoiseKind, type[Noise]] = {"gaussian": Gaussian, "clipped": Clipped, "counts": Counts}


def estimate(kind: NoiseKind, X: Float64, model: Float64, parameters: int) -> Noise:
    """Estimate noise of a kind from the residual of an overfit with that many parameters."""
    return _ESTIMATES[kind](X, model, parameters)


def from_fields(fields: dict[str, Any]) -> Noise:
    """Restore noise from fields that were saved as JSON."""
    kind: NoiseKind = fields["kind"]
    made: Callable[..., Noise] = _CLASSES[kind]
    return made(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def likely_kind(X: Float64) -> NoiseKind:
    """Guess the kind of noise: counts if all entries are multiples of one unit, clipped, or Gaussian."""
    if float(X.min()) >= 0 and unit_of(X) is not None:
        return "counts"
    return without_counts(X)


def without_counts(X: Float64) -> NoiseKind:
    """Guess the kind of noise of entries that are not counts."""
    is_clipped = float(X.min()) >= 0 and float((X == 0).mean()) > CLIPPED_SHARE
    return "clipped" if is_clipped else "gaussian"


def unit_of(X: Float64) -> float | None:
    """Return the number that all entries are multiples of; None without one, or if all entries are equal."""
    values = np.unique(X)
    if len(values) < 2:
        return None
    unit = _refined(float(np.diff(values).min()), values)
    counts = values / unit
    rounding = 1e-3 + 2e-7 * counts  # the second term for entries in single precision
    is_whole = counts[-1] <= MOST_COUNTS and bool((np.abs(counts - np.round(counts)) < rounding).all())
    return unit if is_whole else None


def _refined(unit: float, values: Float64) -> float:
    """Refine the unit by small counts, then by larger ones: differences of large float32 entries are rough."""
    reach = 4.0
    while True:
        near = values[(values > 0) & (values <= reach * unit)]
        counts = np.round(near / unit)
        unit = float(near @ counts / (counts @ counts)) if counts.any() else unit
        if reach * unit >= values[-1] or reach > MOST_COUNTS:
            return unit
        reach *= 8


def _free(X: Float64, parameters: int) -> float:
    """Return the fraction of the noise that the parameters have not fitted."""
    return 1 - parameters / X.size


def mills(a: NDArray[np.float64]) -> Float64:
    """Return φ(a) / Φ(a), also far to the left, where both vanish."""
    from scipy.special import log_ndtr

    return np.asarray(np.exp(-np.square(a) / 2 - np.log(2 * np.pi) / 2 - log_ndtr(a)))


def expected_below(model: Float64, deviation: float) -> Float64:
    """Return what readings that were set to zero are expected to have been, m − σ φ(a)/Φ(a) with a = −m/σ."""
    return model - deviation * mills(-model / deviation)


def expected_square(model: Float64, deviation: float) -> Float64:
    """Return the expected squared residual of readings that were set to zero, σ² + m σ φ(a)/Φ(a)."""
    return deviation**2 + model * deviation * mills(-model / deviation)
