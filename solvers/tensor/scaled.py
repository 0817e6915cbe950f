"""A tensor whose slices along one mode are scaled, without a copy: samples that count more, less, or not at all."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import ReferenceType, ref

import numpy as np

from sparse_ncp.solvers.tensor.dense import Tensor
from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.protocol import GramProduct, Modes, Partial, Positive, TensorLike
from sparse_ncp.solvers.tensor.scan import OnProgress


class SliceSums:
    """Sums over the observed entries of every slice along a mode, which are taken in one pass."""

    def __init__(self, tensor: Tensor, mode: int) -> None:
        def positive(entries: Float64) -> Float64:
            return np.maximum(entries, 0)

        def positive_squares(entries: Float64) -> Float64:
            return np.square(positive(entries))

        nothing = [np.zeros((length, 1), tensor.dtype) for length in tensor.shape]
        self.squares, self.positive_squares, self.positive = tensor.sums_per_index(
            mode, nothing, (np.square, positive_squares, positive)
        )


class ScaledSlices:
    """The tensor with slice i of a mode multiplied by `scales[i]`, which is not negative; nothing is copied.

    A slice that counts k times in a fit is one that is scaled by √k: it has the same share of the squared error, and
    its row of the factor is scaled alike. A slice that is scaled by zero does not count.
    """

    def __init__(self, tensor: Tensor, mode: int, scales: Float64, sums: SliceSums) -> None:
        self._tensor, self._mode = tensor, mode
        self._scales = scales
        self._inside = scales[:, None].astype(tensor.dtype)
        self._outside = scales[:, None]
        self.shape, self.dtype, self.observed = tensor.shape, tensor.dtype, tensor.observed
        weights = np.square(scales)
        self.norm = float(np.sqrt(weights @ sums.squares))
        self.positive = Positive(float(np.sqrt(weights @ sums.positive_squares)), float(scales @ sums.positive))
        # The factor of the mode that was scaled last (a weak reference), and its scaled copy.
        self._latest: tuple[ReferenceType[Array], Array] | None = None

    @property
    def cycle(self) -> Modes:
        return self._tensor.cycle

    def first_contraction(self, factors: Sequence[Array], modes: Modes | None = None) -> Partial:
        return self._tensor.first_contraction(_ScaledFactors(self, factors), modes)

    def sweep(
        self, factors: Sequence[Array], first: Partial, modes: Modes | None = None
    ) -> Iterator[tuple[int, Float64]]:
        """Yield the MTTKRPs of the unscaled tensor with the factor of the mode scaled; that of the mode itself, too."""
        for mode, M in self._tensor.sweep(_ScaledFactors(self, factors), first, modes):
            yield mode, M * self._outside if mode == self._mode else M

    def squared_residual(self, factors: Sequence[Array]) -> float:
        """Return the sum of the squared residuals of the unscaled slices, each times its squared scale."""
        counted = self._outside > 0
        unscaled = list(factors)
        divided = np.divide(factors[self._mode], self._outside, out=np.zeros(factors[self._mode].shape), where=counted)
        unscaled[self._mode] = divided.astype(self.dtype)
        (squares,) = self._tensor.sums_per_index(self._mode, unscaled)
        beside = factors[self._mode][~counted[:, 0]]
        if beside.any():
            raise ValueError("the factor has rows of slices that do not count, which are not zero")
        return float(np.square(self._scales) @ squares)

    @property
    def has_gram_times(self) -> bool:
        return False  # in the other modes, every column of the unfolding would have a scale of its own

    def gram_times(self, V: Mapping[int, Float64]) -> Mapping[int, GramProduct]:
        raise NotImplementedError("a tensor of scaled slices has no gram_times")

    def compile_single_precision(self) -> None:
        self._tensor.compile_single_precision()

    def in_single_precision(self, on_progress: OnProgress) -> "ScaledSlices":
        copy = self._tensor.in_single_precision(on_progress)
        return ScaledSlices(copy, self._mode, self._scales, SliceSums(copy, self._mode))

    def compression_bytes(self, rank: int) -> int:
        return 0

    def compress(self, rank: int, on_progress: OnProgress, always: bool = False) -> TensorLike | None:
        return None

    def scaled(self, mode: int, A: Array) -> Array:
        """Return a factor as the unscaled tensor is contracted with it; the last one of the mode is kept."""
        if mode != self._mode:
            return A
        if self._latest is None or self._latest[0]() is not A:
            self._latest = ref(A), A * self._inside
        return self._latest[1]


class _ScaledFactors(Sequence[Array]):
    """The factors that the unscaled tensor is contracted with, scaled on access."""

    def __init__(self, tensor: ScaledSlices, factors: Sequence[Array]) -> None:
        self._tensor, self._factors = tensor, factors

    def __len__(self) -> int:
        return len(self._factors)

    def __getitem__(self, mode: Any) -> Any:
        return self._tensor.scaled(mode, self._factors[mode])
