"""Tucker compression for long runs: X ≈ core ×₁ U₁ … ×_N U_N with orthonormal Uₙ.

If the discarded part is small compared with X, iterations on the core lead to almost the same factors, at the cost of
a tensor with a few dozen entries along each mode.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol
from weakref import ReferenceType, ref

import numpy as np

from sparse_ncp.solvers.tensor.gemm.blocks import BlockRegion, Blocks, Split, region_shape
from sparse_ncp.solvers.tensor.gemm.protocol import Gemm, Side
from sparse_ncp.solvers.tensor.missing.gemm import gemm_over_observed
from sparse_ncp.solvers.tensor.products import Array, Float64, aligned_empty, padded
from sparse_ncp.solvers.tensor.protocol import GramProduct, Modes, Partial, TensorLike
from sparse_ncp.solvers.tensor.scan import OnProgress
from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

# Basis vectors per mode beyond the rank, and subspace iterations: a random sketch alone was too coarse.
OVERSAMPLES = 10
SUBSPACE_ITERATIONS = 1
# Columns of a sketch that are drawn before they are stored: a cache line holds this many.
DRAWN_TOGETHER = 8
# Number of entries whose squares are summed at a time.
SUMMED = 1 << 20
# Limits for compression to pay off: sweeps over fewer entries are fast anyway, a core with a larger fraction of the
# entries is hardly faster, and a larger relative loss has to be fitted afterwards.
FEWEST_ENTRIES = 1 << 20
LARGEST_CORE = 1 / 8
LARGEST_LOSS = 0.02


class Compressible(TensorLike, Protocol):
    """A tensor whose entries can be truncated mode by mode."""

    stored: Array  # in C order
    modes: Modes  # of the axes of `stored`

    def blocks(self, split: Split) -> Blocks:
        """Return the entries as before × inner × after; those that were not observed read as zeros."""

    def with_core(self, entries: Array) -> TensorLike:
        """Return a tensor of the entries that truncation has left."""


class Compressed:
    """A compressed tensor with the interface of a full one; `norm` is the norm of the full tensor."""

    def __init__(self, tensor: TensorLike, core: TensorLike, bases: Mapping[int, Array]) -> None:
        self.shape, self.dtype, self.norm = tensor.shape, core.dtype, tensor.norm
        self.positive = tensor.positive
        self.observed = tensor.observed
        self._core = core
        self._bases = [
            bases[mode].astype(core.dtype, copy=False) if mode in bases else None for mode in range(len(tensor.shape))
        ]
        self._left_out = max(0.0, tensor.norm**2 - core.norm**2)
        # The factor of each mode that was projected last (a weak reference), and its projection.
        self._latest: dict[int, tuple[ReferenceType[Array], Array]] = {}

    @property
    def cycle(self) -> Modes:
        return self._core.cycle

    def first_contraction(self, factors: Sequence[Array], modes: Modes | None = None) -> Partial:
        return self._core.first_contraction(_Projected(self, factors), modes)

    def sweep(
        self, factors: Sequence[Array], first: Partial, modes: Modes | None = None
    ) -> Iterator[tuple[int, Float64]]:
        """Yield Uₙ times the MTTKRP of the core with the factors Uₘᵀ Aₘ, mode after mode."""
        for mode, M in self._core.sweep(_Projected(self, factors), first, modes):
            U = self._bases[mode]
            yield mode, M if U is None else U.astype(np.float64, copy=False) @ M

    def squared_residual(self, factors: Sequence[Array]) -> float:
        """Return the discarded part plus the residual of the core, which is exact if the factors lie in the bases."""
        return self._left_out + self._core.squared_residual(_Projected(self, factors))

    @property
    def has_gram_times(self) -> bool:
        return False  # the signs of XᵀV cannot be found from the core alone

    def gram_times(self, V: Mapping[int, Float64]) -> Mapping[int, GramProduct]:
        raise NotImplementedError("a compressed tensor has no gram_times")

    def compile_single_precision(self) -> None:
        self._core.compile_single_precision()

    def in_single_precision(self, on_progress: OnProgress) -> "Compressed":
        bases = {mode: U for mode, U in enumerate(self._bases) if U is not None}
        return Compressed(self, self._core.in_single_precision(on_progress), bases)

    def compression_bytes(self, rank: int) -> int:
        return 0

    def compress(self, rank: int, on_progress: OnProgress, always: bool = False) -> TensorLike | None:
        return None  # it is compressed already

    def projection(self, mode: int, A: Array) -> Array:
        """Return UᵀA, cached for the last factor of each mode. Factors are replaced, never modified in place."""
        U = self._bases[mode]
        if U is None:
            return A
        latest, projection = self._latest.get(mode, (None, A))
        if latest is None or latest() is not A:
            projection = U.T @ A
            self._latest[mode] = ref(A), projection
        return projection


class _Projected(Sequence[Array]):
    """The factors of the core: the factors of the full tensor, projected on access."""

    def __init__(self, tensor: Compressed, factors: Sequence[Array]) -> None:
        self._tensor, self._factors = tensor, factors

    def __len__(self) -> int:
        return len(self._factors)

    def __getitem__(self, mode: Any) -> Any:
        return self._tensor.projection(mode, self._factors[mode])


def sketch_bytes(shape: Sequence[int], rank: int) -> int:
    """Upper bound on the memory of a compression: a sketch, the matrix it is multiplied by, and copies of both."""
    return 4 * ((rank + OVERSAMPLES) * math.prod(shape) // max(shape) * 8)


def is_worthwhile(shape: Sequence[int], rank: int, modes: Modes | None = None) -> bool:
    """Whether, by shape alone, sweeps over the core are much faster. Only `modes` can be truncated."""
    lengths = [
        min(length, rank + OVERSAMPLES) if modes is None or mode in modes else length
        for mode, length in enumerate(shape)
    ]
    return math.prod(shape) >= FEWEST_ENTRIES and math.prod(lengths) <= LARGEST_CORE * math.prod(shape)


def compress(
    tensor: Compressible,
    rank: int,
    threads: Threads,
    largest_loss: float = math.inf,
    on_progress: OnProgress | None = None,
) -> Compressed | None:
    """Truncate one mode after another, the longest first; return None once the relative loss exceeds `largest_loss`.

    Only modes along which the pattern of missing entries is constant are truncated, so that the core has the same
    pattern. The core is in double precision, whatever the precision of the tensor: it is small and swept many times.
    `on_progress` is called with the fraction of the passes over the tensor itself that are done; the rest is small.
    """
    random = np.random.default_rng(0)
    entries, bases = tensor.stored, dict[int, Array]()
    axes = [axis for axis, mode in enumerate(tensor.modes) if mode in tensor.observed.constant]
    for axis in sorted(axes, key=lambda axis: -entries.shape[axis]):
        if entries.shape[axis] <= rank + OVERSAMPLES:
            break
        split = Split(0, axis) if axis == entries.ndim - 1 else Split(axis, axis + 1)
        blocks = Blocks(entries, split) if bases else tensor.blocks(split)
        products = gemm_over_observed(blocks, threads)
        report = None if bases else on_progress
        bases[tensor.modes[axis]], entries = _truncated(entries, products, axis, rank + OVERSAMPLES, random, report)
        flat = entries.ravel()  # it may still be large, so sum the squares in pieces
        parts = (flat[part].astype(np.float64, copy=False) for part in split_evenly(flat.size, -(-flat.size // SUMMED)))
        kept = sum(float(part @ part) for part in parts)
        if math.sqrt(max(0.0, tensor.norm**2 - kept)) / tensor.norm > largest_loss:
            return None
    return Compressed(tensor, tensor.with_core(entries), bases) if bases else None


def _truncated(
    entries: Array, products: Gemm, axis: int, kept: int, random: np.random.Generator, on_progress: OnProgress | None
) -> tuple[Array, Array]:
    """Return a basis U of `kept` vectors along an axis, and the entries multiplied by Uᵀ along it."""
    lengths, columns = entries.shape, kept + -kept % products.unit
    side: Side = "inner" if axis == len(lengths) - 1 else "outer"  # of the other axes
    parts = products.parts(columns, side)
    done, passes = count(), 2 + SUBSPACE_ITERATIONS

    def counted(part: Array) -> Array:
        if on_progress is not None:
            on_progress(next(done) / (passes * len(parts)))
        return part

    def orthonormal(product: Array) -> Array:
        basis = np.linalg.qr(product[:, :kept].astype(np.float64))[0]
        return padded(basis.astype(product.dtype), products.unit)

    def others(part: BlockRegion) -> tuple[int, int]:
        """Return the number of entries of a part before and after the truncated axis."""
        before, inner, after = region_shape(part)
        return (before, after) if side == "outer" else (inner, 1)

    sketch = (_sketch(math.prod(others(part)), kept, products, random) for part in parts)
    U = orthonormal(products.contract_parts(map(counted, sketch), columns, side))
    for _ in range(SUBSPACE_ITERATIONS):
        U = orthonormal(products.contract_parts(map(counted, products.contracted_parts(U, side)), columns, side))
    core = np.empty((math.prod(lengths[:axis]), kept, math.prod(lengths[axis + 1 :])), entries.dtype)
    contracted = map(counted, products.contracted_parts(U, side))
    for part in parts:  # a part is released before the next is formed
        before, after = (part[0], part[2]) if side == "outer" else (part[1], slice(0, 1))
        core[before, :, after] = np.moveaxis(next(contracted)[:, :kept].reshape(*others(part), kept), 2, 1)
    return np.ascontiguousarray(U[:, :kept]), core.reshape(*lengths[:axis], kept, *lengths[axis + 1 :])


def _sketch(rows: int, columns: int, products: Gemm, random: np.random.Generator) -> Array:
    """Draw random columns one after another, and pad them with columns of zeros."""
    sketch = aligned_empty((rows, columns + -columns % products.unit), products.dtype)
    for first in range(0, columns, DRAWN_TOGETHER):
        some = slice(first, min(first + DRAWN_TOGETHER, columns))
        sketch[:, some] = random.standard_normal((some.stop - first, rows)).T
    sketch[:, columns:] = 0
    return sketch
