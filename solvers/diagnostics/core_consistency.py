"""The core consistency of Bro and Kiers (CORCONDIA), and why a model has none."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.metrics import unit_columns, weights
from sparse_ncp.solvers.tensor.dense import GROUPS, TILE
from sparse_ncp.solvers.tensor.entries import Entries
from sparse_ncp.solvers.tensor.gemm.out_of_core import contiguous_runs
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.scan import Region, regions_with_entries
from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

# Entries of the largest core: 64 components in three modes, 22 in four. A consistency of more says nothing.
LARGEST_CORE = 1 << 18
# Rounds of filling missing entries, after the first; 200 give the same.
ROUNDS = 5
# Columns of a factor are collinear where their smallest singular value is below this share of the largest.
COLLINEAR = 1e-6


def why_inconsistent(living: Sequence[Float64]) -> str | None:
    """Return why there is no core consistency, or None if there is one."""
    rank, order = living[0].shape[1], len(living)
    if order < 3:
        return "the tensor has two modes: core consistency is about three or more"
    if rank == 0:
        return "every component is zero"
    if rank**order > LARGEST_CORE:
        return f"{rank} components in {order} modes make a core of more than {LARGEST_CORE:,} entries"
    return next(filter(None, map(_why_singular, range(1, order + 1), living)), None)


def _why_singular(mode: int, A: Float64) -> str | None:
    """Return why a factor has no left inverse, or None if it has one."""
    length, rank = A.shape
    if length < rank:
        return f"mode {mode} has a length of {length}, for {rank} components"
    singular = np.linalg.svd(unit_columns(A), compute_uv=False)
    if singular[-1] < COLLINEAR * singular[0]:
        return f"columns of mode {mode} are collinear: there may be too many components"
    return None


def core_consistency(
    entries: Entries, living: Sequence[Float64], has_missing: bool, pool: Threads, cancelled: Callable[[], bool]
) -> float | None:
    """Return the core consistency of Bro and Kiers, 100 (1 − ‖G − T‖² / R).

    G = X ×₁ A₁⁺ … ×_N A_N⁺ is the core; T is one on its diagonal, else zero. G depends on how the scale of a component
    is spread over the modes: here evenly, so that it does not depend on the run.

    Missing entries are filled with the Tucker model G ×₁ A₁ … ×_N A_N of the core found so far, from G = T on. Filled
    with the model alone, they would agree with it. Each round is a pass over the tensor.
    """
    rank, order = living[0].shape[1], len(living)
    scale = weights(living) ** (1 / order)
    inverses = [np.linalg.pinv(unit_columns(living[mode]), rcond=0) / scale[:, None] for mode in entries.modes]
    columns = [unit_columns(living[mode]) * scale for mode in entries.modes]
    ideal = np.zeros((rank,) * order)
    ideal[(np.arange(rank),) * order] = 1
    total = ideal

    def core(some: Sequence[tuple[Region, NDArray[Any]]]) -> Float64:
        parts = []
        for box, part in some:
            found, observed = part.astype(np.float64), entries.observed_in(box, part) if has_missing else None
            if observed is not None:
                np.copyto(found, _tucker(total, [A[cut] for A, cut in zip(columns, box, strict=True)]), where=~observed)
            parts.append(_box_core(found, [A[:, cut] for A, cut in zip(inverses, box, strict=True)]))
        return reduce(np.add, parts)

    for _ in range(1 + ROUNDS if has_missing else 1):
        following = np.zeros_like(ideal)
        for group in regions_with_entries(entries.stored, contiguous_runs, TILE):
            if cancelled():
                return None
            for term in pool.each(core, [group[some] for some in split_evenly(len(group), GROUPS)]):
                following += term.reshape(following.shape)
        total = following
    consistency: float = 100 * (1 - float(np.square(total - ideal).sum()) / rank)
    return consistency


def _tucker(core: Float64, factors: Sequence[Float64]) -> Float64:
    """Return the part of a Tucker model that belongs to these rows of its factors."""
    found = core
    for mode, A in enumerate(factors):
        found = np.moveaxis(np.tensordot(A, found, (1, mode)), 0, mode)
    return found


def _box_core(entries: Float64, inverses: Sequence[Float64]) -> Float64:
    """Return a region's part of the core: multiply mode by mode, the last first, by the inverse."""
    rest, after = entries, 1
    for inverse in reversed(inverses):
        if after == 1:
            rest = rest.reshape(-1, inverse.shape[1]) @ inverse.T
        else:
            rest = np.matmul(inverse, rest.reshape(-1, inverse.shape[1], after))
        after *= len(inverse)
    return rest
