"""Alternating proximal gradient (the paper's Algorithm 4)."""

import math

import numpy as np

from solvers.arrays import Float64
from solvers.block import Block, Memory


def update(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """A ← [Â − (Â Q − M + β) / L]₊ from the extrapolated point Â = A + ω (A − A_before)."""
    return _step(A, block, memory, extrapolate=True)


def plain(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """The same step from Â = A: it never raises the objective. The restart of Algorithm 4."""
    return _step(A, block, memory, extrapolate=False)


def _step(A: Float64, block: Block, memory: Memory, extrapolate: bool) -> tuple[Float64, Memory]:
    # ‖BᵀB‖₂ + α, with α: without it the step is too long and diverges at large α.
    L = float(np.linalg.eigvalsh(block.Q)[-1])
    t_before = memory.numbers.get("t", 1.0)
    t = (1 + math.sqrt(1 + 4 * t_before**2)) / 2
    after = Memory(previous=A, numbers={"t": t, "L": L})
    if L <= 0:  # every other mode has vanished and α = 0: the block is flat, or falls towards zero if β > 0
        return (np.zeros_like(A) if block.beta else A), after
    A_hat = A
    if extrapolate and memory.previous is not None:
        bound = block.delta_omega * math.sqrt(memory.numbers["L"] / L)
        A_hat = A + min((t_before - 1) / t, bound) * (A - memory.previous)
    return np.maximum(A_hat - (A_hat @ block.Q - block.C) / L, 0.0), after
