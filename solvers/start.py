"""Where the factors start: drawn from a seed, or given by the caller."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.arrays import Array, Float64, gram, hadamard
from solvers.door import LARGEST_NORM
from solvers.errors import InvalidInput
from solvers.nndsvd import nndsvd
from solvers.problem import Problem
from solvers.tensor import Tensor


def starting_factors(tensor: Tensor, problem: Problem, initial: Sequence[NDArray[Any]] | None) -> list[Array]:
    """The caller's factors if given, else drawn; then as the method needs them, in the working precision."""
    factors = (
        _draw(tensor, problem)
        if initial is None
        else _check(initial, tensor.shape, problem.settings.rank, tensor.dtype)
    )
    if problem.method.start is not None:
        factors = [problem.method.start(A, initial is None) for A in factors]
    return [np.ascontiguousarray(A, tensor.dtype) for A in factors]


def _draw(tensor: Tensor, problem: Problem) -> list[Float64]:
    settings = problem.settings
    random = np.random.default_rng(settings.seed)
    factors = [_nonnegative_normal(random, length, settings.rank) for length in tensor.shape]
    if settings.init == "random":
        return factors
    if settings.init == "nndsvd":
        factors = [nndsvd(tensor, mode, drawn, random) for mode, drawn in enumerate(factors)]
    size = _best_size(tensor, factors) ** (1 / len(factors))
    return [A * size for A in factors]


def _nonnegative_normal(random: np.random.Generator, length: int, rank: int) -> Float64:
    """max(0, randn), as in the paper; an all-zero column, a component dead from the start, is drawn again."""
    A = np.maximum(0.0, random.standard_normal((length, rank)))
    while not (alive := A.any(axis=0)).all():
        A[:, ~alive] = np.maximum(0.0, random.standard_normal((length, int((~alive).sum()))))
    return A


def _best_size(tensor: Tensor, factors: Sequence[Float64]) -> float:
    """The s that minimises ‖X − s ⟦A¹…Aᴺ⟧‖. Positive, unless X is zero wherever the model is not."""
    working = [A.astype(tensor.dtype) for A in factors]
    mode, M = next(tensor.sweep(working, tensor.head(working)))
    inner = float(np.vdot(factors[mode], M))
    return inner / float(hadamard([gram(A) for A in factors]).sum()) if inner > 0 else 1.0


def _check(initial: Sequence[NDArray[Any]], shape: tuple[int, ...], rank: int, dtype: np.dtype[Any]) -> list[Float64]:
    if len(initial) != len(shape):
        raise InvalidInput("initial", f"has {len(initial)} factors", f"give {len(shape)}, one per mode")
    factors = []
    for mode, (given, length) in enumerate(zip(initial, shape, strict=True), start=1):
        field, A = f"initial A{mode}", np.asarray(given)
        if A.shape != (length, rank):
            raise InvalidInput(field, f"has shape {A.shape}", f"give {(length, rank)}: length of the mode × rank")
        if A.dtype.kind not in "fiub":
            raise InvalidInput(field, f"has dtype {A.dtype}", "give real numbers")
        A = A.astype(np.float64)
        if not np.isfinite(A).all():
            raise InvalidInput(field, "has NaN or infinite entries", "replace them")
        if (A < 0).any():
            raise InvalidInput(
                field, f"has {int((A < 0).sum())} negative entries", "set them to zero with solvers.clip"
            )
        factors.append(A)
    with np.errstate(over="ignore"):
        size = math.prod(float(np.linalg.norm(A)) for A in factors)
    if not size < LARGEST_NORM[dtype]:
        raise InvalidInput("initial", f"makes a model out of the range of {dtype}", "scale the factors down")
    return factors
