"""Multiplicative update (the paper's Algorithm 1)."""

import numpy as np

from sparse_ncp.solvers.block import Block, Memory
from sparse_ncp.solvers.tensor.products import Float64

# Added to a random start, as in the paper: a multiplicative update can never leave zero.
EPSILON = 1e-6
# No entry falls below: denormal numbers are slow, and an exact zero would be final.
FLOOR = 1e-30


def update(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """A ← A ∗ M / (A Q + β). A vanished component has 0 / 0 here, and stays at the floor."""
    for _ in range(block.passes):
        after = block.times(A)  # each step in place: on a long mode, memory for its result takes longer than the step
        after += block.beta
        np.maximum(after, FLOOR * FLOOR, out=after)
        np.divide(block.M, after, out=after)
        np.multiply(A, after, out=after)
        A = np.maximum(after, FLOOR, out=after)
    return A, memory


def start(A: Float64, drawn: bool) -> Float64:
    """A random start gets ε added; factors that were given only have their exact zeros lifted."""
    return A + EPSILON if drawn else np.where(A == 0, EPSILON, A)
