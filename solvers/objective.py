"""The judge: objective and relative error, the same for every method."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.arrays import Array, Float64
from solvers.problem import Problem
from solvers.tensor import Tensor

# The accelerated formula subtracts numbers of the size of ‖X‖², so its relative error is about eps / e² at a relative
# error e. Below these e the residual is streamed instead: one more product, and no cancellation.
STREAM_BELOW = {np.dtype(np.float64): 2e-3, np.dtype(np.float32): 1e-2}


@dataclass(frozen=True)
class Score:
    objective: float
    relative_error: float


def measure(tensor: Tensor, problem: Problem, factors: Sequence[Array], fit: float) -> Score:
    """O and ‖X − ⟦A¹…Aᴺ⟧‖ / ‖X‖; `fit` is the accelerated ‖X − ⟦A¹…Aᴺ⟧‖², see `squared_error`."""
    if fit < (STREAM_BELOW[tensor.dtype] * tensor.norm) ** 2:
        fit = tensor.squared_residual(factors)
    return Score(
        objective=fit / 2 + problem.penalty(factors),
        relative_error=math.sqrt(fit) / tensor.norm,
    )


def squared_error(norm: float, A: Array, M: Float64, AtA: Float64, G: Float64) -> float:
    """‖X‖² − 2 ⟨A, M⟩ + ⟨AᵀA, G⟩ from the last mode's factor, MTTKRP and Gram; rounding may make it negative."""
    return norm**2 - 2 * float(np.vdot(A, M)) + float(np.vdot(AtA, G))
