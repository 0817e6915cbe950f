"""The weights of the penalties, one per mode: as given, or from a sparsity that has no units."""

import math
from dataclasses import dataclass

from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.settings import PerMode, Settings
from sparse_ncp.solvers.tensor.protocol import TensorLike

# The smallest and the largest value of `sparsity="auto"`.
LEAST_SPARSE, MOST_SPARSE = 0.008, 0.5


@dataclass(frozen=True)
class Weights:
    """αₙ and βₙ of every mode."""

    alpha: tuple[float, ...]
    beta: tuple[float, ...]


def given_weights(settings: Settings, order: int) -> Weights:
    """Return the weights of the settings, one per mode."""
    return Weights(per_mode("alpha", settings.alpha, order), per_mode("beta", settings.beta, order))


def weights_for(settings: Settings, tensor: TensorLike, sparsity: float | None) -> Weights:
    """Return the weights for this tensor. With a sparsity, scale alpha to the tensor and derive beta."""
    order = len(tensor.shape)
    given = given_weights(settings, order)
    if sparsity is None:
        return given
    unit = tensor.positive.norm ** (2 - 2 / order)
    # A component spreads over the entries that are missing, too; its norm, like the tensor's, is over the others.
    entries = math.prod(tensor.shape)
    everywhere = tensor.positive.sum * (entries / (entries - missing_count(tensor)))
    beta = beta_for(sparsity * tensor.positive.norm, everywhere / tensor.positive.norm, order)
    return Weights(tuple(alpha * unit for alpha in given.alpha), (beta,) * order)


def missing_count(tensor: TensorLike) -> int:
    """Return how many entries are missing."""
    return 0 if tensor.observed.count is None else math.prod(tensor.shape) - tensor.observed.count


def beta_for(weight: float, spread: float, order: int) -> float:
    """Return the β at which an isolated component of this norm w no longer lowers the objective.

    Balanced over the modes, the penalty of a component is N β (w L)^(1/N), for its spread L = ∏ ‖aₙ‖₁ / ‖aₙ‖. With it,
    ½ w² − w v + N β (v L)^(1/N) stays above zero for every size v of the component from
    β = κ w^(2 − p) / L^p on, p = 1/N and κ = [2 (1 − p) / (2 − p)]^(2 − p) / (2 (1 − p) N).
    """
    p = 1 / order
    kappa = (2 * (1 - p) / (2 - p)) ** (2 - p) / (2 * (1 - p) * order)
    return float(kappa * weight ** (2 - p) / spread**p)


def sparsity_above_noise(tensor: TensorLike, rank: int, relative_error: float) -> float:
    """Return twice the relative norm of a component that is fitted to noise alone."""
    lengths = tensor.shape
    free = max(1, math.prod(lengths) - missing_count(tensor) - rank * sum(lengths))
    deviation = relative_error / math.sqrt(free)  # of one entry, as a share of the tensor's norm
    return min(MOST_SPARSE, max(LEAST_SPARSE, 2 * deviation * sum(map(math.sqrt, lengths))))


def per_mode(field: str, value: PerMode, order: int) -> tuple[float, ...]:
    """Return one weight per mode; raise InvalidInput if their number does not fit the tensor."""
    if not isinstance(value, tuple):
        return (value,) * order
    if len(value) != order:
        remedy = f"give one number, or {order} for this tensor"
        raise InvalidInput(field, f"has {len(value)} numbers for {order} modes", remedy)
    return value
