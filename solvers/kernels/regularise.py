"""Make the quadratic of a mode positive definite and well scaled, without moving its minimisers."""

from dataclasses import dataclass

import numpy as np

from sparse_ncp.solvers.kernels.parallel_rows import RowKernel, update_rows
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.threads import Threads

# Q is singular to working accuracy if a pivot of it, scaled to a unit diagonal, is below this.
SINGULAR = 1e-10
# The same threshold if C was summed in float32: its rounding errors divided by a pivot stay small in the solution.
SINGULAR_FLOAT32 = 1e-5


@dataclass(frozen=True)
class RegularisedQuadratic:
    """½ tr(Z Q Zᵀ) − tr(Z Cᵀ) in Z = A ∗ scale; Q has a unit diagonal, and there may be one per row."""

    Q: Float64
    C: Float64
    start: Float64
    scale: Float64

    def solve(self, threads: Threads) -> Float64:
        """Return the unconstrained minimiser; the start is overwritten."""
        if self.Q.ndim == 3:
            rows: Float64 = np.linalg.solve(self.Q, self.C[:, :, None])[:, :, 0].astype(np.float64, copy=False)
        else:
            from sparse_ncp.solvers.kernels.cholesky import ldl_factors, solve_rows  # numba: see methods/hals.py

            rows = update_rows(solve_rows, self.start, self.C, ldl_factors(self.Q), threads, out=self.start)
        rows /= self.scale
        return rows

    def solve_rows(self, kernel: RowKernel, threads: Threads) -> Float64:
        """Return the minimiser over A ≥ 0 by a kernel for nonnegative least squares; the start is overwritten."""
        rows = update_rows(kernel, self.start, self.C, self.Q, threads, out=self.start)
        rows /= self.scale
        return rows


def regularise(A: Float64, Q: Float64, C: Float64, singular: float = SINGULAR) -> RegularisedQuadratic:
    """Scale Q to a unit diagonal; if it is singular, add the proximal term ½ ρ ‖Z − Z_before‖² to the quadratic.

    Q is singular if a component vanishes or two coincide. A plain ridge would move the minimiser and let the objective
    rise slightly; the proximal term does neither. Components differ in scale by many orders of magnitude, so pivots are
    only meaningful for a unit diagonal.
    """
    from sparse_ncp.solvers.kernels.unit_diagonal import unit_diagonals  # numba: see methods/hals.py

    scaled, scales, smallest = unit_diagonals(Q if Q.ndim == 3 else Q[None])
    scale = scales if Q.ndim == 3 else scales[0]
    C, start, weak = C / scale, A * scale, smallest < singular
    if weak.any():
        scaled[weak] += singular * np.eye(Q.shape[-1])
        C += np.where(weak[:, None], singular * start, 0.0)
    return RegularisedQuadratic(scaled if Q.ndim == 3 else scaled[0], C, start, scale)
