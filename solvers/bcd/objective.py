"""Objective and relative error, measured the same way for every method."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparse_ncp.solvers.bcd.problem import Problem
from sparse_ncp.solvers.tensor.products import Array, Float64, gram, times_rows
from sparse_ncp.solvers.tensor.protocol import TensorLike

# The accelerated formula subtracts numbers of the size of ‖X‖², so its relative error is about eps / e² at a relative
# error e. Below these e the residual is streamed instead: one more product, and no cancellation.
STREAM_BELOW = {np.dtype(np.float64): 2e-3, np.dtype(np.float32): 1e-1}
# By this share of ‖X‖² the objective rises and falls through rounding alone: by the accelerated formula, and streamed.
ROUNDING = {np.dtype(np.float64): 1e-14, np.dtype(np.float32): 2e-7}
ROUNDING_STREAMED = {np.dtype(np.float64): 1e-14, np.dtype(np.float32): 1e-9}


@dataclass(frozen=True)
class Score:
    """The penalised objective and the relative error of some factors."""

    objective: float
    relative_error: float


def measure(tensor: TensorLike, problem: Problem, factors: Sequence[Array], error: float) -> Score:
    """Return O and ‖X − ⟦A¹…Aᴺ⟧‖ / ‖X‖; `error` is the accelerated ‖X − ⟦A¹…Aᴺ⟧‖² of `squared_error`."""
    if error < (STREAM_BELOW[tensor.dtype] * tensor.norm) ** 2:
        error = tensor.squared_residual(factors)
    return Score(
        objective=error / 2 + problem.penalty(factors),
        relative_error=math.sqrt(error) / tensor.norm,
    )


def measure_from_scratch(tensor: TensorLike, problem: Problem, factors: Sequence[Array]) -> Score:
    """Measure factors that no sweep has updated: one contraction gives the first mode's MTTKRP."""
    mode, M = next(tensor.sweep(factors, tensor.first_contraction(factors)))
    G = next(tensor.observed.grams(factors, None))
    return measure(tensor, problem, factors, squared_error(tensor.norm, factors[mode], M, G.rows))


def rounding_noise(tensor: TensorLike, relative_error: float) -> float:
    """Return how far rounding alone can change the objective, by the formula in use at this relative error."""
    streamed = relative_error < STREAM_BELOW[tensor.dtype]
    shares = ROUNDING_STREAMED if streamed else ROUNDING
    return shares[tensor.dtype] * tensor.norm**2


def squared_error(norm: float, A: Array, M: Float64, G: Float64) -> float:
    """Return ‖X‖² − 2 ⟨A, M⟩ + ⟨AᵀA, G⟩ for the last mode's factor, MTTKRP and Gram; rounding may make it negative.

    With one Gram per row, the last term is Σ aᵢ Gᵢ aᵢᵀ.
    """
    if G.ndim == 2:
        return norm**2 - 2 * float(np.vdot(A, M)) + float(np.vdot(gram(A), G))
    exact = A.astype(np.float64, copy=False)
    return norm**2 - 2 * float(np.vdot(A, M)) + float(np.vdot(exact, times_rows(exact, G)))
