"""Make one mode's quadratic positive definite and well scaled, without moving its minimisers."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dpotrf

from solvers.arrays import Float64
from solvers.parallel import RowKernel, Threads

# A pivot of the unit-diagonal Q below this means that Q is singular to working accuracy.
SINGULAR = 1e-10


@dataclass(frozen=True)
class Definite:
    """½ tr(Z Q Zᵀ) − tr(Z Cᵀ) in the scaled unknown Z = A ∗ scale; Q has a unit diagonal and a Cholesky factor."""

    Q: Float64
    C: Float64
    cholesky: Float64
    start: Float64
    scale: Float64

    def solve(self) -> Float64:
        """The unconstrained minimiser."""
        solution: Float64 = cho_solve((self.cholesky, True), self.C.T).T
        return solution / self.scale

    def solve_rows(self, kernel: RowKernel, threads: Threads) -> Float64:
        """The minimiser over A ≥ 0, by a kernel for nonnegative least squares."""
        return threads.over_rows(kernel, self.start, self.C, self.Q) / self.scale


def definite(A: Float64, Q: Float64, C: Float64) -> Definite:
    """Scale Q to a unit diagonal; if it is singular, add the proximal term ½ ρ ‖Z − Z_before‖² to the quadratic.

    A component that dies, or two that coincide, make Q singular. A plain ridge would then move the minimiser and let
    the objective rise a little; the proximal term does neither. Unit diagonal, because components differ in scale by
    many orders of magnitude and a pivot says nothing before they are equal.
    """
    diagonal = np.diagonal(Q)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    start = A * scale
    Q = Q / np.outer(scale, scale)
    C = C / scale
    cholesky, fault = dpotrf(Q, lower=1)
    if fault or np.square(np.diagonal(cholesky)).min() < SINGULAR:
        Q = Q + SINGULAR * np.eye(len(Q))
        C = C + SINGULAR * start
        cholesky, _ = dpotrf(Q, lower=1)  # rounding leaves Q's eigenvalues above −eps · R, far below SINGULAR
    return Definite(Q, C, cholesky, start, scale)
