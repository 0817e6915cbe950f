"""Alternating proximal gradient (the paper's Algorithm 4)."""

import math

import numpy as np

from sparse_ncp.solvers.block import Block, Memory
from sparse_ncp.solvers.tensor.products import Float64

# Power iterations for the step length of a row, and the smallest entry that keeps their vector positive.
POWERS, SMALLEST = 4, 1e-3


def update(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """A ← [Â − (Â Q − M + β) / L]₊ from the extrapolated point Â = A + ω (A − A_before)."""
    return _steps(A, block, memory, extrapolate=True)


def plain(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """Take the step from Â = A, which never raises the objective: the restart of Algorithm 4."""
    return _steps(A, block, memory, extrapolate=False)


def _steps(A: Float64, block: Block, memory: Memory, extrapolate: bool) -> tuple[Float64, Memory]:
    # ‖BᵀB‖₂ + α, with α: without it the step is too long and diverges at large α.
    L = float(np.linalg.eigvalsh(block.bound)[-1])
    for _ in range(block.passes):
        t_before = memory.numbers.get("t", 1.0)
        t = (1 + math.sqrt(1 + 4 * t_before**2)) / 2
        after = Memory(previous=A, numbers={"t": t, "L": L})
        if L <= 0:  # every other mode has vanished and α = 0: the block is flat, or falls towards zero if β > 0
            A, memory = np.zeros_like(A) if block.beta else A, after
            continue
        A_hat = A
        if extrapolate and memory.previous is not None:
            bound = block.delta_omega * math.sqrt(memory.numbers["L"] / L)
            A_hat = A - memory.previous
            A_hat *= min((t_before - 1) / t, bound)
            A_hat += A
        lengths = L if block.Q.ndim == 2 else _row_bounds(block.Q, L)[:, None]
        step = block.times(A_hat)  # each step in place, as in mu.py
        step -= block.C
        step /= lengths
        np.subtract(A_hat, step, out=step)
        A, memory = np.maximum(step, 0.0, out=step), after
    return A, memory


def _row_bounds(Q: Float64, L: float) -> Float64:
    """Return bounds of at most L on ‖Qᵢ‖₂ for I × R × R nonnegative matrices: one per row allows longer steps.

    For any v > 0 the norm is at most the largest entry of (Qᵢ v) / v; after a few power iterations, that is nearly it.
    """
    v = np.ones(Q.shape[:2])
    for _ in range(POWERS):
        Qv = np.matmul(Q, v[:, :, None])[:, :, 0]
        bounds: Float64 = (Qv / v).max(axis=1)
        flat = bounds <= 0  # a row that meets nothing
        v = np.maximum(Qv / np.where(flat, 1.0, Qv.max(axis=1))[:, None], SMALLEST)
    return np.where(flat, L, np.minimum(bounds, L))
