"""Alternating least squares (the paper's Algorithm 2)."""

import numpy as np

from solvers.arrays import Float64
from solvers.block import Block, Memory
from solvers.definite import definite


def update(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """A ← [(M − β) Q⁻¹]₊: the unconstrained solution with its negative part cut off."""
    return np.maximum(definite(A, block.Q, block.C).solve(), 0.0), memory
