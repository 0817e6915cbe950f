"""Fits without a penalty, to the observed entries: HALS from given factors, one component less, one more."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.starts.initial import nonnegative_normal
from sparse_ncp.solvers.metrics import unit_columns, weights
from sparse_ncp.solvers.studies.fitting.noise import Counts, expected_below
from sparse_ncp.solvers.tensor.gemm.blocks import split_point
from sparse_ncp.solvers.tensor.products import Float64, gram, hadamard, khatri_rao
from sparse_ncp.solvers.tensor.scan import Booleans

Factors: TypeAlias = tuple[Float64, ...]

# Sweeps between two computations of the deviance, and the fall, as a fraction of u, below which they end.
DEVIANCE_STRETCH, LEAST_FALL = 10, 1e-3
# Zeros are raised to this fraction of the column's maximum before a multiplicative update, which would keep them.
LIFTED = 1e-6
# Fits of one component to a residual: random starts, of which the best is kept, and sweeps of each.
TRIES, ONE_COMPONENT_SWEEPS = 3, 8


@dataclass(frozen=True)
class Data:
    """A tensor to fit, with the samples as its first mode.

    X is zero where no entry was observed. `deviation` is that of the noise where negative readings were set to zero: a
    zero then says only that the reading was not positive.
    """

    X: Float64
    observed: Booleans | None = None  # None: all entries
    deviation: float | None = None

    @cached_property
    def entries(self) -> Float64:
        """The observed entries, one after another."""
        return self.select(self.X)

    @cached_property
    def missing(self) -> NDArray[np.int64]:
        """Positions of the missing entries in memory."""
        return np.empty(0, np.int64) if self.observed is None else np.flatnonzero(~self.observed)

    @cached_property
    def clipped(self) -> NDArray[np.int64]:
        """Positions of the readings that were set to zero."""
        if self.deviation is None:
            return np.empty(0, np.int64)
        zero = self.X <= 0
        return np.flatnonzero(zero if self.observed is None else zero & self.observed)

    def select(self, tensor: Float64) -> Float64:
        """Return the entries of a tensor of the same shape that are observed here."""
        return tensor.ravel() if self.observed is None else tensor[self.observed]

    def completed(self, model: Float64) -> Float64:
        """Return X with its missing entries replaced by the model, and clipped readings by their expectation."""
        filled = self.X.copy()
        entries, expected = filled.reshape(-1), model.reshape(-1)
        entries[self.missing] = expected[self.missing]
        if self.deviation is not None:
            entries[self.clipped] = expected_below(expected[self.clipped], self.deviation)
        return filled

    def take(self, samples: NDArray[np.intp]) -> "Data":
        """Return some of the samples, in any number."""
        return Data(self.X[samples], None if self.observed is None else self.observed[samples], self.deviation)

    def without(self, left_out: Booleans) -> "Data":
        """Return the same tensor in which more entries count as missing."""
        observed = ~left_out if self.observed is None else self.observed & ~left_out
        return Data(np.where(observed, self.X, 0.0), observed, self.deviation)


@dataclass(frozen=True)
class Fit:
    """Factors, and their squared error on the tensor they were fitted to."""

    factors: Factors
    error: float

    @property
    def components(self) -> int:
        return int(self.factors[0].shape[1])

    @property
    def parameters(self) -> int:
        """The number of free parameters: the scale of a component counts once."""
        return self.components * (sum(len(A) for A in self.factors) - len(self.factors) + 1)


def model(factors: Sequence[Float64]) -> Float64:
    """Return the model tensor ⟦A¹…Aᴺ⟧."""
    shape = tuple(len(A) for A in factors)
    cut = split_point(shape)
    product: Float64 = khatri_rao(factors[:cut]).T @ khatri_rao(factors[cut:])
    return product.reshape(shape)


def descend(data: Data, factors: Factors, sweeps: int, tolerance: float) -> Fit:
    """Fit by HALS until the squared error changes by less than the tolerance per sweep, or the sweeps are done."""
    from sparse_ncp.solvers.studies.fitting.descent import hals  # numba takes half a second to load

    cut = split_point(data.X.shape)
    matrix = data.X.reshape(int(np.prod(data.X.shape[:cut])), -1)
    if len(data.missing) or len(data.clipped):
        matrix = matrix.copy()
    stacked = np.ascontiguousarray(np.concatenate(factors).T)
    lengths = np.array(data.X.shape)
    error = hals(matrix, stacked, lengths, cut, data.missing, data.clipped, data.deviation or 0.0, sweeps, tolerance)
    return Fit(_balanced(stacked, data.X.shape), error)


def descend_deviance(data: Data, factors: Factors, sweeps: int, noise: Counts) -> Factors:
    """Lower the Poisson deviance of counts by multiplicative updates: from a least-squares fit a few are enough."""
    from sparse_ncp.solvers.studies.fitting.descent import deviance

    cut = split_point(data.X.shape)
    matrix = data.X.reshape(int(np.prod(data.X.shape[:cut])), -1)
    lifted = [np.maximum(A, LIFTED * A.max(initial=0.0, axis=0)) for A in factors]
    stacked = np.ascontiguousarray(np.concatenate(lifted).T)
    enough, before = LEAST_FALL * sum(np.sqrt(data.X.shape)) ** 2, np.inf
    for _ in range(0, sweeps, DEVIANCE_STRETCH):
        deviance(matrix, stacked, np.array(data.X.shape), cut, data.missing, DEVIANCE_STRETCH)
        expected = data.select(model(_balanced(stacked, data.X.shape)))
        loss = noise.loss(data.entries, expected, expected)
        if before - loss < enough:
            break
        before = loss
    return _balanced(stacked, data.X.shape)


def overfit(data: Data, rank: int, random: np.random.Generator, sweeps: int, tolerance: float) -> Fit:
    """Fit from a random start."""
    factors = [nonnegative_normal(random, length, rank) for length in data.X.shape]
    norm = np.linalg.norm(data.entries) * np.sqrt(data.X.size / data.entries.size)
    size = norm / np.sqrt(hadamard([gram(A) for A in factors]).sum())
    return descend(data, tuple(A * size ** (1 / len(factors)) for A in factors), sweeps, tolerance)


def dropped(factors: Factors, component: int) -> Factors:
    return tuple(np.delete(A, component, axis=1) for A in factors)


def cheapest_first(factors: Factors) -> list[int]:
    """Order components by w² (1 − cos²), with the cosine to the most similar one, cheapest to remove first."""
    cosines = hadamard([unit.T @ unit for unit in map(unit_columns, factors)])
    np.fill_diagonal(cosines, 0.0)
    cost = np.square(weights(factors)) * (1 - np.square(cosines.max(axis=1, initial=0.0)))
    return [int(place) for place in np.argsort(cost, kind="stable")]


def with_one_more(data: Data, factors: Factors, random: np.random.Generator) -> Factors:
    """Add one component fitted to the residual, the best of a few random starts, without refitting the others."""
    expected = model(factors)
    rest = Data(data.completed(expected) - expected)
    starts = [tuple(nonnegative_normal(random, length, 1) for length in data.X.shape) for _ in range(TRIES)]
    best = min((descend(rest, start, ONE_COMPONENT_SWEEPS, 0.0) for start in starts), key=lambda fit: fit.error)
    return tuple(np.hstack(pair) for pair in zip(factors, best.factors, strict=True))


def _balanced(stacked: Float64, shape: Sequence[int]) -> Factors:
    """Return factors, mode by mode, whose components have the same norm in all modes."""
    factors = [part.T for part in np.split(stacked, np.cumsum(shape)[:-1], axis=1)]
    norms = [np.linalg.norm(A, axis=0) for A in factors]
    size = hadamard(norms) ** (1 / len(factors))
    return tuple(
        np.ascontiguousarray(A * np.divide(size, norm, out=np.zeros_like(norm), where=norm > 0))
        for A, norm in zip(factors, norms, strict=True)
    )
