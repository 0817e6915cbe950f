"""A small stand-in for a tensor, for runs of hundreds of sweeps: X ≈ core ×₁ U₁ … ×_N U_N with orthonormal Uₙ.

Where the discarded part is small against X, a method's iterations on the stand-in lead to almost the same factors, at
the price of a tensor with a few dozen entries along each mode.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from solvers.arrays import Array, Float64
from solvers.halves import Halves, Split
from solvers.parallel import Threads
from solvers.problem import Problem
from solvers.tensor import Partial, Tensor

# Vectors kept per mode beyond the rank, and rounds of subspace iteration: a bare sketch was too coarse.
EXTRA = 10
ROUNDS = 1
# Where to stop believing that it pays: a sweep over fewer entries is quick anyway, a core of more than this share of
# the entries is hardly quicker, and what a core leaves out beyond this share of the norm must be fitted afterwards.
FEWEST_ENTRIES = 1 << 20
LARGEST_CORE = 1 / 8
LARGEST_LOSS = 0.02


class Compressed:
    """Answers what a `Tensor` answers, approximately; `norm` is that of the full tensor."""

    def __init__(self, tensor: Tensor, core: Tensor, bases: Mapping[int, Array]) -> None:
        self.shape, self.dtype, self.norm = tensor.shape, tensor.dtype, tensor.norm
        self._core = core
        self._bases = [bases.get(mode) for mode in range(len(tensor.shape))]
        self._left_out = max(0.0, tensor.norm**2 - core.norm**2)

    @property
    def loss(self) -> float:
        """The norm of what was left out, relative to the tensor's."""
        return math.sqrt(self._left_out) / self.norm

    def head(self, factors: Sequence[Array]) -> Partial:
        return self._core.head(self._inside(factors))

    def sweep(self, factors: Sequence[Array], head: Partial) -> Iterator[tuple[int, Float64]]:
        """Every MTTKRP is Uₙ times the core's, taken with the factors Uₘᵀ Aₘ."""
        inside = self._inside(factors)
        for mode, M in self._core.sweep(inside, head):
            U = self._bases[mode]
            yield mode, M if U is None else U.astype(np.float64, copy=False) @ M
            inside[mode] = _projected(U, factors[mode])

    def squared_residual(self, factors: Sequence[Array]) -> float:
        """Near a perfect fit the factors lie in the bases, and this is the whole of it."""
        return self._left_out + self._core.squared_residual(self._inside(factors))

    def _inside(self, factors: Sequence[Array]) -> list[Array]:
        return [_projected(U, A) for U, A in zip(self._bases, factors, strict=True)]


def stand_in(tensor: Tensor, problem: Problem, threads: Threads) -> Compressed | None:
    """The compressed tensor if it was asked for, or promises a gain by its shape and by what it leaves out."""
    rank = problem.settings.rank
    if problem.settings.accelerate == "compress":
        return compress(tensor, rank, threads)
    return compress(tensor, rank, threads, LARGEST_LOSS) if may_pay(tensor.shape, rank) else None


def may_pay(shape: Sequence[int], rank: int) -> bool:
    """What the shape alone tells."""
    core = math.prod(min(length, rank + EXTRA) for length in shape)
    return math.prod(shape) >= FEWEST_ENTRIES and core <= LARGEST_CORE * math.prod(shape)


def compress(tensor: Tensor, rank: int, threads: Threads, largest_loss: float = math.inf) -> Compressed | None:
    """Truncate mode after mode, the longest first; None as soon as more than `largest_loss` is left out."""
    random = np.random.default_rng(0)
    entries, bases = tensor.stored, dict[int, Array]()
    small: Compressed | None = None
    for axis in sorted(range(entries.ndim), key=lambda axis: -entries.shape[axis]):
        if entries.shape[axis] <= rank + EXTRA:
            break
        bases[tensor.modes[axis]], entries = _truncated(entries, axis, rank + EXTRA, random, threads)
        small = Compressed(tensor, _core(tensor, entries, threads), bases)
        if small.loss > largest_loss:
            return None
    return small


def _truncated(
    entries: Array, axis: int, kept: int, random: np.random.Generator, threads: Threads
) -> tuple[Array, Array]:
    """A basis U of `kept` vectors along the axis, and the entries multiplied by Uᵀ there."""
    lengths = entries.shape
    last = axis == len(lengths) - 1
    halves = Halves(entries, Split(0, axis) if last else Split(axis, axis + 1), threads)
    along, across = (
        (halves.without_inner, halves.without_outer) if last else (halves.without_outer, halves.without_inner)
    )
    others = entries.size // lengths[axis]
    U = _orthonormal(along(random.standard_normal((kept, others)).astype(entries.dtype)))
    for _ in range(ROUNDS):
        U = _orthonormal(along(across(np.ascontiguousarray(U.T))))
    product = across(np.ascontiguousarray(U.T)).reshape(kept, math.prod(lengths[:axis]), -1)
    return U, np.ascontiguousarray(np.moveaxis(product, 0, 1)).reshape(*lengths[:axis], kept, *lengths[axis + 1 :])


def _orthonormal(rows: Array) -> Array:
    """Columns that span the rows."""
    return np.linalg.qr(rows.T.astype(np.float64))[0].astype(rows.dtype)


def _core(tensor: Tensor, entries: Array, threads: Threads) -> Tensor:
    flat = entries.ravel().astype(np.float64, copy=False)
    in_order = entries if tensor.modes[0] == 0 else entries.T
    return Tensor(in_order, math.sqrt(float(flat @ flat)), threads)


def _projected(U: Array | None, A: Array) -> Array:
    return A if U is None else U.T @ A
