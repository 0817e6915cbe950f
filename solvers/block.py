"""One mode's subproblem, as a method sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from solvers.arrays import Float64
from solvers.parallel import Threads


@dataclass(frozen=True)
class Block:
    """The quadratic F(A) = ½ tr(A Q Aᵀ) − tr(A (M − β)ᵀ) over A ≥ 0, with the penalties folded in.

    Q is R × R: the Gram BᵀB + α I, and + β E for the squared l1 penalty. M is the I_n × R MTTKRP, nonnegative.
    `beta` is the plain l1 weight, zero if the penalty is squared. Always in float64: next to the tensor it is small.
    """

    Q: Float64
    M: Float64
    beta: float
    normalise: bool  # HALS: scale every column to unit length
    delta_omega: float  # APG: bound on the extrapolation weight, below 1
    threads: Threads

    @property
    def C(self) -> Float64:
        """The linear term M − β."""
        return self.M - self.beta if self.beta else self.M


@dataclass(frozen=True)
class Memory:
    """What a method carries from one update of a mode to the next; rescaling scales `previous` along."""

    previous: Float64 | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    def scaled(self, scale: Float64) -> "Memory":
        return self if self.previous is None else replace(self, previous=self.previous * scale)
