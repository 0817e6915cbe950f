"""A start from singular vectors: NNDSVD of every unfolding, without ever forming one or its dense SVD."""

import numpy as np

from solvers.arrays import Float64
from solvers.tensor import Tensor

# Vectors carried beyond the rank, and rounds of subspace iteration: the leading vectors of a lab tensor need no more.
EXTRA = 10
ROUNDS = 4


def nndsvd(tensor: Tensor, mode: int, fallback: Float64, random: np.random.Generator) -> Float64:
    """The nonnegative parts of the leading left singular vectors of the mode's unfolding, I_n × R.

    Of each vector the sign is kept whose part, together with the right vector's, is larger. Where the unfolding has
    no vector left (R beyond its rank), the column of `fallback` stays, made small.
    """
    length, rank = fallback.shape
    if length <= rank + EXTRA:
        basis = np.eye(length)
    else:
        basis = np.linalg.qr(random.standard_normal((length, rank + EXTRA)))[0]
        for _ in range(ROUNDS):
            basis = np.linalg.qr(tensor.unfolded(mode, basis).product)[0]
    ritz, rotation = np.linalg.eigh(basis.T @ tensor.unfolded(mode, basis).product)
    leading = np.argsort(ritz)[::-1][:rank]
    vectors = basis @ rotation[:, leading]
    right = tensor.unfolded(mode, vectors)
    parts = np.stack((np.maximum(vectors, 0), np.maximum(-vectors, 0)))
    left_norms = np.sqrt(np.square(parts).sum(axis=1))
    weights = left_norms * np.sqrt(np.stack((right.positive, right.negative)))  # σ ‖u±‖ ‖v±‖
    weights /= weights.max()  # only their ratios count; their size would be raised to the power of the order
    kept = weights.argmax(axis=0)
    A: Float64 = fallback * (1e-2 / length)
    for column, sign in enumerate(kept):
        weight = weights[sign, column]
        if weight > 1e-8:
            A[:, column] = np.sqrt(weight) * parts[sign, :, column] / left_norms[sign, column]
    return A
