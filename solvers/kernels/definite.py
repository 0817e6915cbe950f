"""A mode's quadratic made positive definite and well scaled, without moving its minimisers."""

from dataclasses import dataclass

import numpy as np

from solvers.kernels.rows import LEAST_SQUARES_ROWS, RowKernel, update_rows
from solvers.tensor.products import Float64
from solvers.tensor.threads import Threads

# A pivot of the unit-diagonal Q below this means that Q is singular to working accuracy.
SINGULAR = 1e-10
# The same beside a C that was summed in float32: its rounding, divided by the pivot, stays small in the solution.
SINGULAR_FLOAT32 = 1e-5


@dataclass(frozen=True)
class DefiniteQuadratic:
    """½ tr(Z Q Zᵀ) − tr(Z Cᵀ) in the scaled unknown Z = A ∗ scale; Q has a unit diagonal and a Cholesky factor.

    With a Q per row, there is none: each row is solved by itself.
    """

    Q: Float64
    C: Float64
    cholesky: Float64 | None
    start: Float64
    scale: Float64

    def solve(self) -> Float64:
        """The unconstrained minimiser."""
        if self.cholesky is None:
            rows: Float64 = np.linalg.solve(self.Q, self.C[:, :, None])[:, :, 0].astype(np.float64, copy=False)
            return rows / self.scale
        from scipy.linalg.lapack import dpotrs  # a quarter of a second to load, as below

        solution: Float64 = dpotrs(self.cholesky, self.C.T, lower=1)[0].T
        solution /= self.scale
        return solution

    def solve_rows(self, kernel: RowKernel, threads: Threads) -> Float64:
        """The minimiser over A ≥ 0, by a kernel for nonnegative least squares; it takes the place of the start."""
        rows = update_rows(kernel, LEAST_SQUARES_ROWS, self.start, self.C, self.Q, threads, out=self.start)
        rows /= self.scale
        return rows


def make_definite(A: Float64, Q: Float64, C: Float64, singular: float = SINGULAR) -> DefiniteQuadratic:
    """Scale Q to a unit diagonal; if it is singular, add the proximal term ½ ρ ‖Z − Z_before‖² to the quadratic.

    A component that dies, or two that coincide, make Q singular. A plain ridge would then move the minimiser and let
    the objective rise a little; the proximal term does neither. Unit diagonal, because components differ in scale by
    many orders of magnitude and a pivot says nothing before they are equal.
    """
    from scipy.linalg.lapack import dpotrf

    diagonal = np.diagonal(Q, axis1=-2, axis2=-1)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    C = C / scale
    start = A * scale
    if Q.ndim == 3:
        return _definite_rows(start, Q / (scale[:, :, None] * scale[:, None, :]), C, scale, singular)
    Q = Q / np.outer(scale, scale)
    cholesky, failed = dpotrf(Q, lower=1)
    if failed or np.square(np.diagonal(cholesky)).min() < singular:
        Q = Q + singular * np.eye(len(Q))
        C = C + singular * start
        cholesky, _ = dpotrf(Q, lower=1)  # rounding leaves Q's eigenvalues above −eps · R, far below `singular`
    return DefiniteQuadratic(Q, C, cholesky, start, scale)


def _definite_rows(start: Float64, Q: Float64, C: Float64, scale: Float64, singular: float) -> DefiniteQuadratic:
    """The same with a Q per row; Q is this function's own, and is changed."""
    from solvers.kernels.pivots import smallest_pivots  # numba: see methods/hals.py

    weak = smallest_pivots(Q) < singular
    Q[weak] += singular * np.eye(Q.shape[1])
    return DefiniteQuadratic(Q, C + np.where(weak[:, None], singular * start, 0.0), None, start, scale)
