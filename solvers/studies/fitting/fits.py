"""Fits without a penalty: HALS from given factors, one component less, one more.

Factors are in units of the tensor's root mean square, whatever the noise; those of counts are fitted on a tensor whose
rows are divided by the square roots of their means, which makes Poisson noise nearly even and keeps the components.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.starts.initial import nonnegative_normal
from sparse_ncp.solvers.metrics import weights
from sparse_ncp.solvers.studies.fitting.noise import Clipped, Counts, Noise, NoiseKind
from sparse_ncp.solvers.tensor.dense import Tensor
from sparse_ncp.solvers.tensor.gemm.blocks import split_point
from sparse_ncp.solvers.tensor.products import Float64, gram, hadamard, khatri_rao
from sparse_ncp.solvers.tensor.protocol import Modes, Positive
from sparse_ncp.solvers.tensor.threads import Threads

Factors: TypeAlias = tuple[Float64, ...]

INNER_PASSES = 4
# Tensors of up to this many entries are multiplied by one thread: dividing the work would take as long.
SMALL = 1 << 17
# Sweeps between two completions of clipped readings, and between two tests of convergence.
STRETCH = 4
# Sweeps between two computations of the deviance, and the fall, as a fraction of u, below which they end.
DEVIANCE_STRETCH, LEAST_FALL = 10, 1e-3
# Rows of counts are divided by at least the square root of this fraction of the mean.
LEAST_ROW = 0.02
# Zeros are raised to this fraction of the column's maximum before a multiplicative update.
LIFTED = 1e-6
# Fits of one component to a residual: random starts, of which the best is kept, and sweeps of each.
TRIES, ONE_COMPONENT_SWEEPS = 3, 8


class Unfoldings:
    """A small tensor, for which plain products of the unfoldings are faster than shared partial results."""

    def __init__(self, entries: Float64, norm: float) -> None:
        self.norm = norm
        self._entries = entries
        self._matrices: dict[int, Float64] = {}

    def products(self, factors: Sequence[Float64], modes: Modes | None = None) -> Iterator[tuple[int, Float64]]:
        """Yield (mode, its MTTKRP) for every mode in turn, from the latest factors."""
        for mode in modes or range(len(factors)):
            others = [A for other, A in enumerate(factors) if other != mode]
            yield mode, self._unfolding(mode) @ khatri_rao(others).T

    def _unfolding(self, mode: int) -> Float64:
        if mode not in self._matrices:
            unfolded = np.moveaxis(self._entries, mode, 0).reshape(self._entries.shape[mode], -1)
            self._matrices[mode] = np.ascontiguousarray(unfolded)
        return self._matrices[mode]


@dataclass(frozen=True)
class Data:
    """A tensor to fit, X, and a copy whose rows are divided by `scales`, which the fits use."""

    X: Float64
    scales: Factors
    working: Tensor | Unfoldings
    pool: Threads

    @classmethod
    def of(cls, X: Float64, kind: NoiseKind, pool: Threads) -> "Data":
        return cls.scaled(X, _row_scales(X) if kind == "counts" else _ones(X.shape), pool)

    @classmethod
    def scaled(cls, X: Float64, scales: Factors, pool: Threads) -> "Data":
        return cls(X, scales, _tensor(X / _outer(scales), pool), pool)

    def like(self, X: Float64) -> "Data":
        """Return data for another tensor, scaled in the same way."""
        return Data.scaled(X, self.scales, self.pool)


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


def descend(data: Data, factors: Factors, sweeps: int, tolerance: float, noise: Noise | None = None) -> Fit:
    """Fit by HALS until the squared error changes by less than the tolerance per sweep, or the sweeps are done.

    With clipped noise, zeros of the tensor are replaced by what they are expected to be, again and again.
    """
    scaled = [A / scale[:, None] for A, scale in zip(factors, data.scales, strict=True)]
    X, before = data.working, np.inf
    for sweep in range(sweeps):
        if isinstance(noise, Clipped) and sweep % STRETCH == 0:
            X = _tensor(noise.completed(data.X, model(scaled)), data.pool)
        scaled, error = _sweep(X, scaled)
        if sweep % STRETCH == STRETCH - 1:
            if abs(before - error) <= STRETCH * tolerance * error:
                break
            before = error
    return Fit(tuple(A * scale[:, None] for A, scale in zip(_balanced(scaled), data.scales, strict=True)), error)


def _sweep(X: Tensor | Unfoldings, start: Sequence[Float64]) -> tuple[list[Float64], float]:
    """Update every mode in turn by HALS, and return the factors and their squared error."""
    from sparse_ncp.solvers.kernels.hals import hals_rows  # numba takes half a second to load

    factors, grams = list(start), [gram(A) for A in start]
    for mode, M in _products(X, factors):
        Q, A = hadamard([G for other, G in enumerate(grams) if other != mode]), factors[mode]
        updated = np.empty_like(M)
        hals_rows(A, M, Q, updated, INNER_PASSES)
        A = updated
        factors[mode], grams[mode] = A, gram(A)
    error = X.norm**2 - 2 * float(np.vdot(M, A)) + float(np.vdot(grams[mode], Q))
    return factors, max(0.0, error)


def _products(
    X: Tensor | Unfoldings, factors: Sequence[Float64], modes: Modes | None = None
) -> Iterator[tuple[int, Float64]]:
    """Yield (mode, its MTTKRP) for every mode in turn, from the latest factors."""
    if isinstance(X, Unfoldings):
        return X.products(factors, modes)
    return X.sweep(factors, X.first_contraction(factors, modes), modes)


def descend_deviance(data: Data, factors: Factors, sweeps: int, noise: Counts) -> Factors:
    """Lower the Poisson deviance by multiplicative updates, A ← A ∗ MTTKRP(X / model) / (∗ over the others of 1ᵀA).

    From a least-squares fit a few are enough; its zeros are lifted first, since such an update would keep them.
    """
    lifted = [np.maximum(A, LIFTED * A.max(initial=0.0, axis=0)) for A in factors]
    enough, before = LEAST_FALL * sum(np.sqrt(data.X.shape)) ** 2, np.inf
    for sweep in range(sweeps):
        for mode in range(len(lifted)):
            ratio = _tensor(data.X / np.maximum(model(lifted), np.finfo(float).tiny), data.pool)
            [(_, M)] = _products(ratio, lifted, (mode,))
            sums = hadamard([A.sum(axis=0) for other, A in enumerate(lifted) if other != mode])
            lifted[mode] = lifted[mode] * np.divide(M, sums, out=np.zeros_like(M), where=sums > 0)
        if sweep % DEVIANCE_STRETCH == 0:
            loss = noise.loss(data.X, model(lifted), data.X)
            if before - loss < enough:
                break
            before = loss
    return tuple(_balanced(lifted))


def overfit(data: Data, rank: int, random: np.random.Generator, sweeps: int, tolerance: float) -> Fit:
    """Fit from a random start."""
    factors = [nonnegative_normal(random, length, rank) for length in data.X.shape]
    size = np.linalg.norm(data.X) / np.sqrt(hadamard([gram(A) for A in factors]).sum())
    return descend(data, tuple(A * size ** (1 / len(factors)) for A in factors), sweeps, tolerance)


def dropped(factors: Factors, component: int) -> Factors:
    return tuple(np.delete(A, component, axis=1) for A in factors)


def cheapest_first(factors: Factors) -> list[int]:
    """Order components by w² (1 − cos²), with the cosine to the most similar one, cheapest to remove first."""
    w = weights(factors)
    unit = [A / np.maximum(np.linalg.norm(A, axis=0), np.finfo(float).tiny) for A in factors]
    cosines = hadamard([A.T @ A for A in unit])
    np.fill_diagonal(cosines, 0.0)
    cost = np.square(w) * (1 - np.square(cosines.max(axis=1, initial=0.0)))
    return [int(place) for place in np.argsort(cost, kind="stable")]


def with_one_more(data: Data, factors: Factors, noise: Noise, random: np.random.Generator) -> Factors:
    """Add one component fitted to the residual, the best of a few random starts, without refitting the others."""
    seen = noise.completed(data.X, model(factors)) if isinstance(noise, Clipped) else data.X
    rest = data.like(seen - model(factors))
    starts = [tuple(nonnegative_normal(random, length, 1) for length in data.X.shape) for _ in range(TRIES)]
    fits = [descend(rest, start, ONE_COMPONENT_SWEEPS, 0.0) for start in starts]
    best = min(fits, key=lambda fit: fit.error)
    return tuple(np.hstack(pair) for pair in zip(factors, best.factors, strict=True))


def _row_scales(X: Float64) -> Factors:
    mean = X.mean()
    marginals = [X.mean(axis=tuple(other for other in range(X.ndim) if other != mode)) for mode in range(X.ndim)]
    return tuple(np.sqrt(np.maximum(marginal / mean, LEAST_ROW)) for marginal in marginals)


def _ones(shape: Sequence[int]) -> Factors:
    return tuple(np.ones(length) for length in shape)


def _outer(scales: Factors) -> Float64:
    return model([scale[:, None] for scale in scales])


def _tensor(entries: NDArray[Any], pool: Threads) -> Tensor | Unfoldings:
    entries = np.ascontiguousarray(entries)
    norm = float(np.linalg.norm(entries))
    if entries.size <= SMALL:
        return Unfoldings(entries, norm)
    return Tensor(entries, norm, Positive(norm, float(entries.sum())), pool)


def _balanced(factors: Sequence[Float64]) -> list[Float64]:
    """Return factors whose components have the same norm in all modes."""
    norms = [np.linalg.norm(A, axis=0) for A in factors]
    size = hadamard(norms) ** (1 / len(factors))
    return [
        A * np.divide(size, norm, out=np.zeros_like(norm), where=norm > 0)
        for A, norm in zip(factors, norms, strict=True)
    ]
