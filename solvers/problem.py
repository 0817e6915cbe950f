"""The settings, resolved for a tensor of a given shape: the objective O and its blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.arrays import Array, Float64
from solvers.block import Block
from solvers.errors import InvalidInput
from solvers.methods import METHODS, Method
from solvers.parallel import Threads
from solvers.settings import PerMode, Settings

DELTA_OMEGA = 0.9999


@dataclass(frozen=True)
class Problem:
    """O = ½‖X − ⟦A¹…Aᴺ⟧‖² + Σ αₙ/2 ‖Aⁿ‖² + the l1 or the squared l1 penalty with weights βₙ."""

    method: Method
    settings: Settings
    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    squared: bool

    def block(self, mode: int, G: Float64, M: Float64, threads: Threads) -> Block:
        """The quadratic of one mode, from its Gram G and its MTTKRP M."""
        Q = G + self.alpha[mode] * np.eye(len(G))
        last = mode == len(self.alpha) - 1
        return Block(
            Q=Q + self.beta[mode] if self.squared else Q,
            M=M,
            beta=0.0 if self.squared else self.beta[mode],
            normalise=self.normalises and not last,
            delta_omega=DELTA_OMEGA if self.settings.delta_omega is None else self.settings.delta_omega,
            threads=threads,
        )

    @property
    def normalises(self) -> bool:
        """HALS normalises, as in the paper, unless told otherwise or asked to rescale."""
        asked = self.settings.normalise
        return "normalise" in self.method.options and (not self.settings.rescale if asked is None else asked)

    @property
    def accelerates(self) -> bool:
        """Whether to try a compressed tensor first."""
        return self.settings.accelerate != "none" and self.method.compressible

    def penalty(self, factors: Sequence[Array]) -> float:
        """Σ αₙ/2 ‖Aⁿ‖² + Σ βₙ ‖Aⁿ‖₁, or with β/2 Σᵢ ‖row i‖₁² instead."""
        total = 0.0
        for A, alpha, beta in zip(factors, self.alpha, self.beta, strict=True):
            rows = A.sum(axis=1, dtype=np.float64)
            l1 = float(rows @ rows) / 2 if self.squared else float(rows.sum())
            total += alpha / 2 * float(np.square(A, dtype=np.float64).sum()) + beta * l1
        return total

    def advice(self) -> list[str]:
        """What is allowed, but will hardly do what it was meant to."""
        zeros = [str(mode) for mode, beta in enumerate(self.beta, start=1) if beta == 0]
        if not zeros or len(zeros) == len(self.beta):
            return []
        return [
            f"beta is zero in mode {', '.join(zeros)} and positive elsewhere: scale moves freely between the modes, "
            "so all of it will gather there and the sparsity penalty fade; give every mode a positive beta"
        ]


def resolve(settings: Settings, order: int) -> Problem:
    method = METHODS[settings.method]
    return Problem(
        method=method,
        settings=settings,
        alpha=_per_mode("alpha", settings.alpha, order),
        beta=_per_mode("beta", settings.beta, order),
        squared=(settings.penalty or method.penalty) == "l1_squared",
    )


def _per_mode(field: str, value: PerMode, order: int) -> tuple[float, ...]:
    if not isinstance(value, tuple):
        return (value,) * order
    if len(value) != order:
        remedy = f"give one number, or {order} for this tensor"
        raise InvalidInput(field, f"has {len(value)} numbers for {order} modes", remedy)
    return value
