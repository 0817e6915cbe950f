"""Core consistency of a model, also of a tensor with missing entries."""

import numpy as np

from sparse_ncp.solvers.metrics import unit_columns, weights
from sparse_ncp.solvers.studies.fitting.fits import Data, Factors, model
from sparse_ncp.solvers.tensor.products import Float64

# Rounds of filling the holes with the Tucker model of the core: filled with the CP model they flatter it.
ROUNDS = 5
# Entries of the largest core.
LARGEST = 1 << 16


def core_consistency(data: Data, factors: Factors) -> float | None:
    """Return the core consistency in percent; None where a mode is shorter than the number of components."""
    rank = factors[0].shape[1]
    if min(data.X.shape) < rank or rank**data.X.ndim > LARGEST:
        return None
    scale = weights(factors) ** (1 / len(factors))
    if not scale.all():
        return None
    columns = [unit_columns(A) for A in factors]
    inverses = [np.linalg.pinv(A) / scale[:, None] for A in columns]
    filled = data.completed(model(factors))
    core = _multiply(filled, inverses)
    if len(data.missing):
        for _ in range(ROUNDS):
            tucker = _multiply(core, [A * scale for A in columns])
            filled.reshape(-1)[data.missing] = tucker.reshape(-1)[data.missing]
            core = _multiply(filled, inverses)
    diagonal = np.zeros_like(core)
    diagonal[(np.arange(rank),) * core.ndim] = 1
    return float(100 * (1 - np.square(core - diagonal).sum() / rank))


def _multiply(tensor: Float64, matrices: list[Float64]) -> Float64:
    """Multiply every mode of a tensor by a matrix."""
    for mode, matrix in enumerate(matrices):
        tensor = np.moveaxis(np.tensordot(matrix, tensor, (1, mode)), 0, mode)
    return np.ascontiguousarray(tensor)
