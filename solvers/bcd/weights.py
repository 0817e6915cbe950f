"""The weights of the penalties, one per mode: as given, or from a sparsity that has no units."""

import math
from dataclasses import dataclass

from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.settings import PerMode, Settings
from sparse_ncp.solvers.tensor.protocol import TensorLike

# What `sparsity="auto"` gives at least, and at most.
LEAST_SPARSE, MOST_SPARSE = 0.008, 0.5


@dataclass(frozen=True)
class Weights:
    """αₙ and βₙ of every mode."""

    alpha: tuple[float, ...]
    beta: tuple[float, ...]


def given_weights(settings: Settings, order: int) -> Weights:
    """The weights as they were asked for, one per mode; InvalidInput if they are not as many as the modes."""
    return Weights(per_mode("alpha", settings.alpha, order), per_mode("beta", settings.beta, order))


def weights_for(settings: Settings, tensor: TensorLike, sparsity: float | None) -> Weights:
    """The weights for this tensor. With a sparsity, alpha counts in units of the tensor, and beta follows."""
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
    """How many entries were not observed."""
    return 0 if tensor.observed.count is None else math.prod(tensor.shape) - tensor.observed.count


def beta_for(weight: float, spread: float, order: int) -> float:
    """The β at which an isolated component of this norm w no longer lowers the objective.

    Balanced over the modes, the penalty of a component is N β (w L)^(1/N), for its spread L = ∏ ‖aₙ‖₁ / ‖aₙ‖. With it,
    ½ w² − w v + N β (v L)^(1/N) stays above zero for every size v of the component from
    β = κ w^(2 − p) / L^p on, p = 1/N and κ = [2 (1 − p) / (2 − p)]^(2 − p) / (2 (1 − p) N).
    """
    p = 1 / order
    kappa = (2 * (1 - p) / (2 - p)) ** (2 - p) / (2 * (1 - p) * order)
    return float(kappa * weight ** (2 - p) / spread**p)


def sparsity_above_noise(tensor: TensorLike, rank: int, relative_error: float) -> float:
    """A sparsity that noise does not reach: twice the norm that a component fitted to noise alone would have."""
    lengths = tensor.shape
    free = max(1, math.prod(lengths) - missing_count(tensor) - rank * sum(lengths))
    deviation = relative_error / math.sqrt(free)  # of one entry, as a share of the tensor's norm
    return min(MOST_SPARSE, max(LEAST_SPARSE, 2 * deviation * sum(map(math.sqrt, lengths))))


def per_mode(field: str, value: PerMode, order: int) -> tuple[float, ...]:
    """One weight per mode. InvalidInput if there are as many as for another tensor."""
    if not isinstance(value, tuple):
        return (value,) * order
    if len(value) != order:
        remedy = f"give one number, or {order} for this tensor"
        raise InvalidInput(field, f"has {len(value)} numbers for {order} modes", remedy)
    return value
