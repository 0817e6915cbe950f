"""Starting factors: random from a seed, from singular vectors (NNDSVD), or given by the caller."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.problem import Problem
from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.metrics import weights
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.protocol import GramProduct, TensorLike
from sparse_ncp.solvers.tensor.scan import OnProgress
from sparse_ncp.solvers.tensor.validation import LARGEST_NORM

# NNDSVD: vectors carried beyond the rank, and subspace iterations. The leading vectors of a lab tensor need no more.
SVD_OVERSAMPLES = 10
SVD_ITERATIONS = 4
# One of several starts is NNDSVD if the tensor is no larger: on others the vectors cost more than they save.
SVD_MOST_ENTRIES = 1 << 24
# Components that are added to given ones: their weight, as a share of the mean weight of those.
NEW_WEIGHT = 0.1
NONE_FIXED: Mapping[int, Array] = MappingProxyType({})


def starting_factors(
    tensor: TensorLike,
    problem: Problem,
    initial: Sequence[NDArray[Any]] | None,
    start: int = 1,
    fixed: Mapping[int, Array] = NONE_FIXED,
    on_progress: OnProgress = lambda share: None,
) -> list[Array]:
    """Return the caller's factors or drawn ones, in the working precision and as the method needs them.

    The first start follows the settings. The others are random and fitted in size, except for one by NNDSVD. Fixed
    factors are kept. `on_progress` is called with the fraction done before every round of
    passes over the tensor.
    """
    on_progress(0.0)
    if initial is None:
        factors = _draw(tensor, problem, start, fixed, on_progress)
    else:
        factors = _take_initial(initial, tensor.shape, tensor.dtype, problem.settings, bool(fixed))
    if problem.method.start is not None:
        factors = [problem.method.start(A, initial is None) for A in factors]
    return [fixed.get(mode, np.ascontiguousarray(A, tensor.dtype)) for mode, A in enumerate(factors)]


def is_from_singular_vectors(tensor: TensorLike, settings: Settings, start: int) -> bool:
    """Return whether a start is made by NNDSVD: the first if the settings say so, else the second of a small tensor."""
    if settings.init == "nndsvd":
        return start == 1
    return start == 2 and tensor.has_gram_times and math.prod(tensor.shape) <= SVD_MOST_ENTRIES


def _draw(
    tensor: TensorLike, problem: Problem, start: int, fixed: Mapping[int, Array], on_progress: OnProgress
) -> list[Float64]:
    settings = problem.settings
    key = () if start == 1 else (start,)
    random = np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=key))
    factors = [nonnegative_normal(random, length, settings.rank) for length in tensor.shape]
    factors = [np.asarray(fixed.get(mode, A), np.float64) for mode, A in enumerate(factors)]
    if settings.init == "random" and start == 1:
        return factors
    if is_from_singular_vectors(tensor, settings, start) and tensor.has_gram_times:
        done, passes = count(), SVD_ITERATIONS + 2 + 1

        def multiplied(V: Mapping[int, Float64]) -> Mapping[int, GramProduct]:
            on_progress(next(done) / passes)
            return tensor.gram_times(V)

        found = nndsvd(multiplied, {mode: A for mode, A in enumerate(factors) if mode not in fixed}, random)
        factors = [found.get(mode, A) for mode, A in enumerate(factors)]
    working = [A.astype(tensor.dtype) for A in factors]
    first, M = next(tensor.sweep(working, tensor.first_contraction(working)))
    inner = float(np.vdot(factors[first], M))
    # The s that minimises ‖X − s ⟦A¹…Aᴺ⟧‖, or 1 if no positive s does.
    best = inner / float(tensor.observed.overlap(factors).sum()) if inner > 0 else 1.0
    size = best ** (1 / len(problem.free))
    return [A if mode in fixed else A * size for mode, A in enumerate(factors)]


def nonnegative_normal(random: np.random.Generator, length: int, rank: int) -> Float64:
    """Draw max(0, randn), as in the paper; draw an all-zero column again, since its component would stay zero."""
    A = np.maximum(0.0, random.standard_normal((length, rank)))
    while not (alive := A.any(axis=0)).all():
        A[:, ~alive] = np.maximum(0.0, random.standard_normal((length, int((~alive).sum()))))
    return A


def nndsvd(
    gram_times: Callable[[Mapping[int, Float64]], Mapping[int, GramProduct]],
    fallbacks: Mapping[int, Float64],
    random: np.random.Generator,
) -> dict[int, Float64]:
    """NNDSVD: nonnegative parts of the leading left singular vectors of the unfoldings of these modes, each I_n × R.

    Neither an unfolding nor its dense SVD is ever formed. Each pair of singular
    vectors is taken with the sign for which the nonnegative parts are larger. If the unfolding has too few (R exceeds
    its rank), the column of the mode's fallback is used, scaled down.
    """
    bases = dict[int, Float64]()
    for mode, fallback in fallbacks.items():
        length, wanted = len(fallback), fallback.shape[1] + SVD_OVERSAMPLES
        is_whole = length <= wanted
        bases[mode] = np.eye(length) if is_whole else np.linalg.qr(random.standard_normal((length, wanted)))[0]
    for _ in range(SVD_ITERATIONS):
        searched = {mode: basis for mode, basis in bases.items() if len(basis) > basis.shape[1]}
        bases |= {mode: np.linalg.qr(found.product)[0] for mode, found in gram_times(searched).items()}
    vectors = dict[int, Float64]()
    for mode, found in gram_times(bases).items():
        ritz, rotation = np.linalg.eigh(bases[mode].T @ found.product)
        vectors[mode] = bases[mode] @ rotation[:, np.argsort(ritz)[::-1][: fallbacks[mode].shape[1]]]
    rights = gram_times(vectors)
    return {mode: _nonnegative_parts(vectors[mode], rights[mode], fallback) for mode, fallback in fallbacks.items()}


def _nonnegative_parts(vectors: Float64, right: GramProduct, fallback: Float64) -> Float64:
    """Return the larger nonnegative part of each vector, weighted by singular value and share of both vectors."""
    parts = np.stack((np.maximum(vectors, 0), np.maximum(-vectors, 0)))
    left_norms = np.sqrt(np.square(parts).sum(axis=1))
    weights = left_norms * np.sqrt(np.stack((right.positive, right.negative)))  # σ ‖u±‖ ‖v±‖
    weights /= weights.max()  # only their ratios count; their size would be raised to the power of the order
    kept = weights.argmax(axis=0)
    A: Float64 = fallback * (1e-2 / len(fallback))
    for column, sign in enumerate(kept):
        weight = weights[sign, column]
        if weight > 1e-8:
            A[:, column] = np.sqrt(weight) * parts[sign, :, column] / left_norms[sign, column]
    return A


def initial_notes(initial: Sequence[NDArray[Any]] | None, rank: int) -> list[str]:
    """Return a note on initial factors whose rank is not the rank of the run."""
    found = None if initial is None else np.asarray(initial[0]).shape[-1]
    if found is None or found == rank:
        return []
    if found > rank:
        return [f"the rank of the initial factors is {found}: of their components, only the strongest were kept"]
    return [f"the rank of the initial factors is {found}: random components were added"]


def check_fixed(
    fixed: Mapping[int, NDArray[Any]], shape: Sequence[int], settings: Settings, dtype: np.dtype[Any]
) -> dict[int, Array]:
    """Check the fixed factors and return them by mode, from 0, in the working precision.

    Raises
    ------
    InvalidInput
        If a mode does not exist, a shape does not fit, or the settings need components of free scale.
    """
    rank = settings.rank
    unknown = [mode for mode in fixed if mode not in range(1, len(shape) + 1)]
    if unknown:
        raise InvalidInput("fixed", f"has a factor for mode {unknown[0]}", f"count the modes from 1 to {len(shape)}")
    if len(fixed) == len(shape):
        raise InvalidInput("fixed", "has a factor for every mode", "leave out those that are to be fitted")
    checked: dict[int, Float64] = {}
    for mode, given in sorted(fixed.items()):
        A = np.asarray(given)
        if A.shape != (shape[mode - 1], rank):
            wanted = f"give {(shape[mode - 1], rank)}: length of the mode × rank"
            raise InvalidInput(f"fixed A{mode}", f"has shape {A.shape}", wanted)
        checked[mode - 1] = _check_factor(f"fixed A{mode}", A)
    if fixed and settings.regrow:
        raise InvalidInput("regrow", "cannot be combined with fixed factors", "leave it out")
    if fixed and settings.sparsity is not None:
        remedy = "give beta instead: the model that the factors come from has it in result.resolved"
        raise InvalidInput("sparsity", "cannot be combined with fixed factors", remedy)
    _check_model_size("fixed", list(checked.values()), dtype)
    return {mode: np.ascontiguousarray(A, dtype) for mode, A in checked.items()}


def _take_initial(
    initial: Sequence[NDArray[Any]], shape: tuple[int, ...], dtype: np.dtype[Any], settings: Settings, has_fixed: bool
) -> list[Float64]:
    """Check the caller's factors, all of the same rank, and return them in double precision and of the settings' rank.

    If there are more components, the strongest are kept; if there are fewer, weak random ones are added.
    """
    if len(initial) != len(shape):
        raise InvalidInput("initial", f"has {len(initial)} factors", f"give {len(shape)}, one per mode")
    rank = np.asarray(initial[0]).shape[-1:]  # of the first factor: the others must have it, too
    factors = []
    for mode, (given, length) in enumerate(zip(initial, shape, strict=True), start=1):
        field, A = f"initial A{mode}", np.asarray(given)
        if A.shape != (length, *rank) or A.size == 0:
            wanted = (length, max(1, *rank)) if rank else f"({length}, rank)"
            raise InvalidInput(field, f"has shape {A.shape}", f"give {wanted}: length of the mode × rank")
        factors.append(_check_factor(field, A))
    _check_model_size("initial", factors, dtype)
    strength, missing = weights(factors), settings.rank - factors[0].shape[1]
    if has_fixed and missing:
        remedy = "give as many as the fixed factors have, or leave them out"
        raise InvalidInput("initial", f"has {factors[0].shape[1]} components", remedy)
    if missing <= 0:
        strongest = np.sort(np.argsort(-strength, kind="stable")[: settings.rank])
        return [A[:, strongest] for A in factors]
    random = np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(1,)))
    new = [nonnegative_normal(random, len(A), missing) for A in factors]
    weight = NEW_WEIGHT * strength.mean() if strength.any() else 1.0
    size = (weight / weights(new)) ** (1 / len(new))
    return [np.hstack((A, B * size)) for A, B in zip(factors, new, strict=True)]


def _check_model_size(field: str, factors: Sequence[Array], dtype: np.dtype[Any]) -> None:
    with np.errstate(over="ignore"):
        size = math.prod(float(np.linalg.norm(A)) for A in factors)
    if not size < LARGEST_NORM[dtype]:
        raise InvalidInput(field, f"gives a model outside the range of {dtype}", "scale the factors down")


def _check_factor(field: str, given: NDArray[Any]) -> Float64:
    if given.dtype.kind not in "fiub":
        raise InvalidInput(field, f"has dtype {given.dtype}", "give real numbers")
    A = given.astype(np.float64)
    if not np.isfinite(A).all():
        raise InvalidInput(field, "has NaN or infinite entries", "replace them")
    if (A < 0).any():
        raise InvalidInput(
            field, f"has negative entries, {int((A < 0).sum())} of {A.size}", "set them to zero with sparse_ncp.clip"
        )
    return A
