"""A mode's quadratic made positive definite and well scaled, without moving its minimisers."""

from dataclasses import dataclass

import numpy as np

from sparse_ncp.solvers.kernels.parallel_rows import RowKernel, update_rows
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.threads import Threads

# A pivot of the unit-diagonal Q below this means that Q is singular to working accuracy.
SINGULAR = 1e-10
# The same beside a C that was summed in float32: its rounding, divided by the pivot, stays small in the solution.
SINGULAR_FLOAT32 = 1e-5


@dataclass(frozen=True)
class RegularisedQuadratic:
    """½ tr(Z Q Zᵀ) − tr(Z Cᵀ) in the scaled unknown Z = A ∗ scale; Q has a unit diagonal, or each row its own Q."""

    Q: Float64
    C: Float64
    start: Float64
    scale: Float64

    def solve(self, threads: Threads) -> Float64:
        """The unconstrained minimiser; it takes the place of the start."""
        if self.Q.ndim == 3:
            rows: Float64 = np.linalg.solve(self.Q, self.C[:, :, None])[:, :, 0].astype(np.float64, copy=False)
        else:
            from sparse_ncp.solvers.kernels.cholesky import ldl_factors, solve_rows  # numba: see methods/hals.py

            rows = update_rows(solve_rows, self.start, self.C, ldl_factors(self.Q), threads, out=self.start)
        rows /= self.scale
        return rows

    def solve_rows(self, kernel: RowKernel, threads: Threads) -> Float64:
        """The minimiser over A ≥ 0, by a kernel for nonnegative least squares; it takes the place of the start."""
        rows = update_rows(kernel, self.start, self.C, self.Q, threads, out=self.start)
        rows /= self.scale
        return rows


def regularise(A: Float64, Q: Float64, C: Float64, singular: float = SINGULAR) -> RegularisedQuadratic:
    """Scale Q to a unit diagonal; if it is singular, add the proximal term ½ ρ ‖Z − Z_before‖² to the quadratic.

    A component that dies, or two that coincide, make Q singular. A plain ridge would then move the minimiser and let
    the objective rise a little; the proximal term does neither. Unit diagonal, because components differ in scale by
    many orders of magnitude and a pivot says nothing before they are equal.
    """
    from sparse_ncp.solvers.kernels.unit_diagonal import unit_diagonals  # numba: see methods/hals.py

    scaled, scales, smallest = unit_diagonals(Q if Q.ndim == 3 else Q[None])
    scale = scales if Q.ndim == 3 else scales[0]
    C, start, weak = C / scale, A * scale, smallest < singular
    if weak.any():
        scaled[weak] += singular * np.eye(Q.shape[-1])
        C += np.where(weak[:, None], singular * start, 0.0)
    return RegularisedQuadratic(scaled if Q.ndim == 3 else scaled[0], C, start, scale)
