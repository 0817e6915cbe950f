"""The settings, resolved for a tensor of a given shape: the objective O and its blocks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparse_ncp.solvers.bcd.penalties import Weights
from sparse_ncp.solvers.block import Block
from sparse_ncp.solvers.methods import METHODS, Method
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.protocol import Gram, Modes
from sparse_ncp.solvers.tensor.threads import Threads

DELTA_OMEGA = 0.9999
# Solves a problem of one block.
EXACT_METHOD = "anls-bpp"


@dataclass(frozen=True)
class Problem:
    """O = ½‖X − ⟦A¹…Aᴺ⟧‖² + Σ αₙ/2 ‖Aⁿ‖² + the l1 or the squared l1 penalty with weights βₙ."""

    method: Method
    settings: Settings
    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    squared: bool
    free: Modes  # the modes, from 0, whose factors are fitted; the others stay

    def block(self, mode: int, G: Gram, M: Float64, threads: Threads, single: bool = False) -> Block:
        """Return the quadratic of one mode from its Grams G and its MTTKRP M; `single` if M was summed in float32."""

        def penalised(G: Float64) -> Float64:
            Q = G.copy()
            diagonals = Q.reshape(*Q.shape[:-2], -1)[..., :: Q.shape[-1] + 1]
            diagonals += self.alpha[mode]
            return Q + self.beta[mode] if self.squared else Q

        Q = penalised(G.rows)
        last = mode == self.free[-1]
        return Block(
            Q=Q,
            bound=Q if G.common is G.rows else penalised(G.common),
            M=M,
            beta=0.0 if self.squared else self.beta[mode],
            single=single,
            normalise=self.normalises and not last,
            delta_omega=DELTA_OMEGA if self.settings.delta_omega is None else self.settings.delta_omega,
            passes=self.settings.inner_passes,
            threads=threads,
        )

    @property
    def has_fixed(self) -> bool:
        """Whether the factors of some modes are given and stay."""
        return len(self.free) < len(self.alpha)

    @property
    def is_one_block(self) -> bool:
        """Whether a single factor is to be fitted."""
        return len(self.free) == 1

    @property
    def normalises(self) -> bool:
        """Whether columns are scaled to unit length: HALS does, as in the paper, unless the settings say otherwise."""
        asked = self.settings.normalise
        return "normalise" in self.method.options and (not self.settings.rescale if asked is None else asked)

    @property
    def extrapolates(self) -> bool:
        """Whether sweeps begin from extrapolated factors."""
        possible = self.method.extrapolable and not self.normalises
        return possible if self.settings.extrapolate is None else self.settings.extrapolate

    @property
    def can_regrow(self) -> bool:
        """Whether the penalty is a sum over components whose scale is free, as the proof in `regrow` needs it."""
        return not self.normalises and not (self.squared and any(self.beta)) and not self.has_fixed

    @property
    def tries_compression(self) -> bool:
        """Whether to begin with a compressed tensor, if there is one."""
        return self.settings.accelerate in ("auto", "compress") and self.method.signed and not self.is_one_block

    @property
    def tries_single(self) -> bool:
        """Whether to begin with a copy in single precision, if the tensor allows it and there is nothing better."""
        return self.settings.accelerate in ("auto", "float32") and not self.is_one_block

    def penalty(self, factors: Sequence[Array]) -> float:
        """Σ αₙ/2 ‖Aⁿ‖² + Σ βₙ ‖Aⁿ‖₁, or with β/2 Σᵢ ‖row i‖₁² instead."""
        if not self.squared:
            return float(self.penalty_per_component(factors).sum())
        total = 0.0
        for A, alpha, beta in zip(factors, self.alpha, self.beta, strict=True):
            rows = A.sum(axis=1, dtype=np.float64)
            l1 = float(rows @ rows) / 2 if self.squared else float(rows.sum())
            total += alpha / 2 * float(np.square(A, dtype=np.float64).sum()) + beta * l1
        return total

    def penalty_per_component(self, factors: Sequence[Array]) -> Float64:
        """Return Σ αₙ/2 ‖a‖² + Σ βₙ ‖a‖₁ over the modes for every component, for the plain l1 penalty."""
        from sparse_ncp.solvers.kernels.elementwise import squares_and_sums  # numba, see methods/hals.py

        total = np.zeros(factors[0].shape[1])
        for A, alpha, beta in zip(factors, self.alpha, self.beta, strict=True):
            squares, sums = squares_and_sums(np.ascontiguousarray(A))
            total += alpha / 2 * squares + beta * sums
        return total

    def sparsity_penalty(self, factors: Sequence[Array]) -> float:
        """Return the part of the penalty that comes from β."""
        return replace(self, alpha=(0.0,) * len(self.alpha)).penalty(factors)

    def advice(self) -> list[str]:
        """Return warnings about valid settings that will hardly have the intended effect."""
        found = []
        if self.normalises and any(self.beta):
            found.append(
                "hals as in the paper keeps unit columns in all modes but the last, so beta hardly makes them sparse, "
                "and a heavy one leaves a large error; give normalise=False and rescale=True, or method anls-bpp"
            )
        zeros = [str(mode + 1) for mode in self.free if self.beta[mode] == 0]
        if 0 < len(zeros) < len(self.free):
            found.append(
                f"beta is zero in mode {', '.join(zeros)} and positive elsewhere: scale moves freely between the "
                "modes, so all of it will gather there and the sparsity penalty fade; give every mode a positive beta"
            )
        return found


def most_components(shape: Sequence[int], observed: int | None = None) -> int:
    """Return the largest number of components that can be identified in a tensor of this shape.

    A component has Σ (Iₙ − 1) + 1 free numbers. If all components together have more free numbers than the tensor has
    entries, infinitely many models fit equally well. For a matrix the limit is its shorter side; even below it, only
    nonnegativity and sparsity choose among infinitely many models.
    """
    if len(shape) == 2:
        return min(shape)
    entries = math.prod(shape) if observed is None else observed
    return max(1, entries // (sum(shape) - len(shape) + 1))


def rank_advice(shape: Sequence[int], rank: int, observed: int | None = None) -> str | None:
    """Return a warning about more components than can be identified, or None."""
    most = most_components(shape, observed)
    if rank <= most:
        return None
    entries = math.prod(shape) if observed is None else observed
    what = " × ".join(map(str, shape))
    return (
        f"rank {rank} is more than can be identified in a tensor of {what} with {entries:,} entries: at most {most} "
        "components, since more have more free numbers than there are entries, and their shapes mean nothing; lower "
        "the rank"
    )


def resolve(settings: Settings, weights: Weights, fixed: Modes = ()) -> Problem:
    """Return the problem for these settings and penalty weights.

    With one free mode it is convex: a single nonnegative least-squares problem solves it, whatever the method.
    """
    free = tuple(mode for mode in range(len(weights.alpha)) if mode not in fixed)
    return Problem(
        method=METHODS[settings.method if len(free) > 1 else EXACT_METHOD],
        settings=settings,
        alpha=weights.alpha,
        beta=weights.beta,
        squared=settings.penalises_squared,
        free=free,
    )
