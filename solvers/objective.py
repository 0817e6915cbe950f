"""The judge: objective and relative error, the same for every method."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.arrays import Array, Float64, gram, hadamard
from solvers.problem import Problem
from solvers.tensor import TensorLike

# The accelerated formula subtracts numbers of the size of ‖X‖², so its relative error is about eps / e² at a relative
# error e. Below these e the residual is streamed instead: one more product, and no cancellation.
STREAM_BELOW = {np.dtype(np.float64): 2e-3, np.dtype(np.float32): 1e-1}
# By this share of ‖X‖² the objective rises and falls through rounding alone.
ROUNDING = {np.dtype(np.float64): 1e-14, np.dtype(np.float32): 1e-8}


@dataclass(frozen=True)
class Score:
    objective: float
    relative_error: float


def measure(tensor: TensorLike, problem: Problem, factors: Sequence[Array], error: float) -> Score:
    """O and ‖X − ⟦A¹…Aᴺ⟧‖ / ‖X‖; `error` is the accelerated ‖X − ⟦A¹…Aᴺ⟧‖², see `squared_error`."""
    if error < (STREAM_BELOW[tensor.dtype] * tensor.norm) ** 2:
        error = tensor.squared_residual(factors)
    return Score(
        objective=error / 2 + problem.penalty(factors),
        relative_error=math.sqrt(error) / tensor.norm,
    )


def measure_whole(tensor: TensorLike, problem: Problem, factors: Sequence[Array]) -> Score:
    """The same for factors that no sweep has just left: one contraction gives the first mode's MTTKRP."""
    mode, M = next(tensor.sweep(factors, tensor.head(factors)))
    grams = [gram(A) for A in factors]
    G = hadamard(grams[:mode] + grams[mode + 1 :])
    return measure(tensor, problem, factors, squared_error(tensor.norm, factors[mode], M, grams[mode], G))


def noise(tensor: TensorLike) -> float:
    """A change of the objective that means nothing."""
    return ROUNDING[tensor.dtype] * tensor.norm**2


def squared_error(norm: float, A: Array, M: Float64, AtA: Float64, G: Float64) -> float:
    """‖X‖² − 2 ⟨A, M⟩ + ⟨AᵀA, G⟩ from the last mode's factor, MTTKRP and Gram; rounding may make it negative."""
    return norm**2 - 2 * float(np.vdot(A, M)) + float(np.vdot(AtA, G))
