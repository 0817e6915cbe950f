"""Alternating least squares (the paper's Algorithm 2)."""

import numpy as np

from sparse_ncp.solvers.block import Block, Memory
from sparse_ncp.solvers.kernels.regularise import SINGULAR, SINGULAR_FLOAT32, regularise
from sparse_ncp.solvers.tensor.products import Float64

# A component of a smaller share of the largest one is rounding: what the cut was meant to make zero.
ROUNDING = 1e-12


def update(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """A ← [(M − β) Q⁻¹]₊: the unconstrained solution with its negative part cut off.

    Where columns coincide, rounding of M sends them far apart in opposite directions, and the cut would keep one half.
    """
    singular = SINGULAR_FLOAT32 if block.single else SINGULAR
    solution = regularise(A, block.Q, block.C, singular).solve(block.threads)
    np.maximum(solution, 0.0, out=solution)
    elsewhere = np.sqrt(np.diagonal(block.bound))
    weights = np.linalg.norm(solution, axis=0) * elsewhere
    solution[:, (elsewhere > 0) & (weights < ROUNDING * weights.max())] = 0.0
    return solution, memory
