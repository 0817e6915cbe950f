"""Move the scale of each component between its columns to where the penalty is smallest.

Scaling the columns of component r by s₁ … s_N with ∏ sₙ = 1 leaves the model as it is. The penalty is smallest where
p s² + q s is the same in every mode, for p = α ‖a‖² and q = β ‖a‖₁. So the objective never rises.
"""

from collections.abc import Sequence

import numpy as np

from solvers.arrays import Array, Float64
from solvers.block import Memory
from solvers.problem import Problem

# Newton's steps double the digits; a handful is enough from any start.
NEWTON_STEPS = 50
CONVERGED = 1e-12
# A column of a smaller squared norm is as good as zero, and its products underflow.
VANISHED = 1e-100


def best_scales(problem: Problem, factors: Sequence[Array]) -> Float64:
    """N × R scales, their product over the modes 1; all ones for a component that has vanished in some mode."""
    exact = [A.astype(np.float64, copy=False) for A in factors]
    scales = np.ones((len(exact), exact[0].shape[1]))
    alpha, beta = np.array(problem.alpha), np.array(problem.beta)
    if not (alpha + beta).all():  # all scale would run to the mode without a penalty, and never arrive
        return scales
    squares = np.array([np.square(A).sum(axis=0) for A in exact])
    alive = (squares > VANISHED).all(axis=0)
    if not problem.squared:
        sums = np.array([A.sum(axis=0) for A in exact])
        scales[:, alive] = _balance(alpha[:, None] * squares[:, alive], beta[:, None] * sums[:, alive])
        return scales
    rows = [A.sum(axis=1) for A in exact]
    for r in np.flatnonzero(alive):
        others = np.array([A[:, r] @ (row - A[:, r]) for A, row in zip(exact, rows, strict=True)])
        scale = _balance(((alpha + beta) * squares[:, r])[:, None], (beta * others.clip(0))[:, None])[:, 0]
        rows = [row + (s - 1) * A[:, r] for A, row, s in zip(exact, rows, scale, strict=True)]
        scales[:, r] = scale
    return scales


def rescaled(problem: Problem, factors: Sequence[Array], memory: Sequence[Memory]) -> tuple[list[Array], list[Memory]]:
    """The factors at their best scales; what a method remembers of earlier factors is scaled along."""
    scales = best_scales(problem, factors)
    return (
        [(A * s).astype(A.dtype, copy=False) for A, s in zip(factors, scales, strict=True)],
        [kept.scaled(s) for kept, s in zip(memory, scales, strict=True)],
    )


def _balance(p: Float64, q: Float64) -> Float64:
    """Scales s with p s² + q s = λ in every mode (rows) and ∏ s = 1, for every component (columns).

    log s is an increasing function of log λ with a slope between ½ and 1, so Newton's method on its sum cannot fail.
    """
    log_lambda = np.log(p + q).mean(axis=0)
    for _ in range(NEWTON_STEPS):
        root = np.sqrt(q * q + 4 * p * np.exp(log_lambda))
        s = 2 * np.exp(log_lambda) / (q + root)
        excess = np.log(s).sum(axis=0)
        log_lambda = log_lambda - excess / ((q + root) / (2 * root)).sum(axis=0)
        if np.abs(excess).max(initial=0.0) < CONVERGED:
            break
    balanced: Float64 = s * np.exp(-np.log(s).mean(axis=0))  # the product is 1 to the last bits
    return balanced
