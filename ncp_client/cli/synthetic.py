"""Synthetic tensors with known components, written in blocks so that they may be larger than memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Entries written at a time.
BLOCK_ENTRIES = 1 << 22


def planted_factors(shape: Sequence[int], rank: int, random: np.random.Generator) -> list[NDArray[np.float64]]:
    """Return factors like those of evoked responses: Gaussian bumps, and uniform entries in the last mode."""
    factors = [_bumps(length, rank, random) for length in shape[:-1]]
    return [*factors, random.random((shape[-1], rank))]


def write_planted(
    path: Path, shape: Sequence[int], rank: int, noise: float, seed: int, truth: Path | None = None
) -> None:
    """Write a tensor as `.npy`, with noise max(0, randn) whose expected norm is `noise` times that of the signal."""
    random = np.random.default_rng(seed)
    factors = planted_factors(shape, rank, random)
    gram = np.prod([A.T @ A for A in factors], axis=0)
    scale = noise * np.sqrt(gram.sum() / (np.prod(shape, dtype=np.float64) / 2))  # the mean of max(0, randn)² is 1/2
    tensor = np.lib.format.open_memmap(path, "w+", np.float64, tuple(shape))
    rows = max(1, BLOCK_ENTRIES // int(np.prod(shape[1:])))
    for first in range(0, shape[0], rows):
        part = slice(first, first + rows)
        block = _model([factors[0][part], *factors[1:]])
        tensor[part] = block + scale * np.maximum(0.0, random.standard_normal(block.shape))
    tensor.flush()
    if truth is not None:
        named: dict[str, Any] = {f"A{mode}": A for mode, A in enumerate(factors, start=1)}
        np.savez(truth, **named)


def _bumps(length: int, rank: int, random: np.random.Generator) -> NDArray[np.float64]:
    place = np.arange(length)[:, None] / length
    centres, widths = random.uniform(0, 1, rank), random.uniform(0.05, 0.25, rank)
    return np.exp(-np.square((place - centres) / widths) / 2)


def _model(factors: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the sum of the components."""
    columns = factors[0]
    for A in factors[1:-1]:
        columns = (columns[:, None, :] * A[None, :, :]).reshape(-1, A.shape[1])
    model: NDArray[np.float64] = (columns @ factors[-1].T).reshape([len(A) for A in factors])
    return model
