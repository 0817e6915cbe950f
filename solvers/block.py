"""The subproblem of one mode, as a method sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sparse_ncp.solvers.tensor.products import Float64, times_rows
from sparse_ncp.solvers.tensor.threads import Threads


@dataclass(frozen=True)
class Block:
    """The quadratic F(A) = ½ tr(A Q Aᵀ) − tr(A (M − β)ᵀ) over A ≥ 0, with the penalties folded in.

    Q is R × R: the Gram BᵀB + α I, plus β E for the squared l1 penalty. With missing entries it is I_n × R × R, one
    matrix per row. `bound` is an R × R upper bound on all of them (Q itself if there is only one). M is the I_n × R
    MTTKRP, nonnegative unless the tensor has negative entries or is compressed. `beta` is the plain l1 weight, zero if
    the penalty is squared. All arrays are float64: they are small compared with the tensor.
    """

    Q: Float64
    bound: Float64
    M: Float64
    beta: float
    single: bool  # M was summed in float32
    normalise: bool  # HALS: scale every column to unit length
    delta_omega: float  # APG: bound on the extrapolation weight, below 1
    passes: int  # MU, HALS, APG: updates of the factor, one after the other
    threads: Threads

    @property
    def C(self) -> Float64:
        """The linear term M − β."""
        return self.M - self.beta if self.beta else self.M

    def times(self, A: Float64) -> Float64:
        """Return A Q, with the Q of each row if there are several."""
        return times_rows(A, self.Q)


@dataclass(frozen=True)
class Memory:
    """State that a method keeps from one update of a mode to the next; rescaling also scales `previous`."""

    previous: Float64 | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    def scaled(self, scale: Float64) -> "Memory":
        return self if self.previous is None else replace(self, previous=self.previous * scale)
