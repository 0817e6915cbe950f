"""Put lost components back: fit new ones to the residual, and keep those that together lower the objective.

A component that has died stays zero, since zero is a local minimum in it. Here the dead columns are filled with new
components D, fitted to the residual X − F of the living ones by a few passes of HALS, first without β, so that they
take shape, then with it. Of these are kept the ones with m_r < 0, the largest m_r leaving first, for

    m_r = −⟨X − F, d_r⟩ + Σ_s ⟨d_r, d_s⟩ − ½ ‖d_r‖² + penalty(d_r),   the sum over the components kept.

All ⟨d_r, d_s⟩ are nonnegative, so the objective changes by Σ m_r − ½ Σ_{r≠s} ⟨d_r, d_s⟩ ≤ Σ m_r < 0: it never rises.
The argument needs a penalty that is a sum over components, so it does not hold for the squared l1 penalty.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.objective import Score, measure_from_scratch
from sparse_ncp.solvers.bcd.penalties import beta_for
from sparse_ncp.solvers.bcd.problem import Problem
from sparse_ncp.solvers.bcd.scaling import best_scales
from sparse_ncp.solvers.bcd.starts.initial import nonnegative_normal
from sparse_ncp.solvers.kernels.parallel_rows import update_rows
from sparse_ncp.solvers.metrics import DEAD_SHARE, weights
from sparse_ncp.solvers.tensor.products import Array, Float64, times_rows
from sparse_ncp.solvers.tensor.protocol import TensorLike
from sparse_ncp.solvers.tensor.threads import Threads

# The norm of the new components' model before they are fitted, as a share of the tensor's.
NEW_SHARE = 0.3


class Passes(NamedTuple):
    """HALS passes over the new components, without β and with it."""

    free: int
    penalised: int


USUAL, RANK_ONE = Passes(5, 2), Passes(10, 10)


class Regrowth(NamedTuple):
    """Factors with components put back, and their score."""

    factors: list[Array]
    score: Score


def regrow(
    X: TensorLike,
    problem: Problem,
    factors: Sequence[Array],
    objective: float,
    key: Sequence[int],
    threads: Threads,
    thorough: bool = True,
) -> Regrowth | None:
    """Fill the dead columns, all at once or else with a single component; None if nothing lowers O.

    A single component has the residual to itself, so it may lower O where several do not. It is tried if `thorough`,
    and where the model is zero. There it is fitted well, since zero is the global minimum if and only if no single
    component lowers O. `key` seeds the random numbers.
    """
    dead = dead_components(X, factors)
    count = int(dead.sum())
    if count == 0:
        return None
    living = [A[:, ~dead].astype(np.float64) for A in factors]
    attempts = [(count, USUAL)]
    if thorough or dead.all():
        attempts.append((1, RANK_ONE if dead.all() else USUAL))
    for attempt, (columns, passes) in enumerate(attempts):
        random = np.random.default_rng(np.random.SeedSequence(problem.settings.seed, spawn_key=(*key, attempt)))
        new = _select_components(X, problem, *_fit_components(X, problem, living, columns, passes, random, threads))
        if new is None:
            continue
        room = [np.zeros((len(A), count - new[0].shape[1])) for A in new]
        filled = [np.hstack(columns).astype(X.dtype) for columns in zip(living, new, room, strict=True)]
        score = measure_from_scratch(X, problem, filled)
        if score.objective < objective:
            return Regrowth(filled, score)
    return None


def dead_components(X: TensorLike, factors: Sequence[Array]) -> NDArray[np.bool_]:
    """Return which components have vanished: their weight is negligible against the norm of the tensor."""
    is_dead: NDArray[np.bool_] = weights(factors) <= DEAD_SHARE * X.norm
    return is_dead


def largest_useful_beta(X: TensorLike, problem: Problem, threads: Threads) -> float:
    """Estimate the largest β at which a single component lowers the objective, from the best one without a penalty."""
    random = np.random.default_rng(np.random.SeedSequence(problem.settings.seed, spawn_key=()))
    nothing, free = [np.zeros((length, 0)) for length in X.shape], (0.0,) * len(X.shape)
    D, inner = _fit_components(X, replace(problem, alpha=free, beta=free), nothing, 1, Passes(10, 0), random, threads)
    size = weights(D)[0] if X.observed.count is None else np.sqrt(X.observed.overlap(D)[0, 0])
    spread = np.prod([A.sum() / np.linalg.norm(A) for A in D]) * (weights(D)[0] / size)
    return beta_for(float(inner[0] / size), float(spread), len(D))


def _fit_components(
    X: TensorLike,
    problem: Problem,
    living: Sequence[Float64],
    columns: int,
    passes: Passes,
    random: np.random.Generator,
    threads: Threads,
) -> tuple[list[Float64], Float64]:
    """Fit new components to the residual; return them and ⟨X − F, d_r⟩ for each."""
    if columns == 1 and living[0].shape[1] == 0:
        D = [np.ones((length, 1)) for length in X.shape]  # positive, so that it meets X wherever that is not zero
    else:
        D = [nonnegative_normal(random, length, columns) for length in X.shape]
    size = (NEW_SHARE * X.norm / np.sqrt(X.observed.overlap(D).sum())) ** (1 / len(D))
    D = [A * size for A in D]
    free = replace(problem, beta=(0.0,) * len(D))
    for _ in range(passes.free):
        D, inner = _hals_pass(X, free, living, D, threads)
    for _ in range(passes.penalised):
        D, inner = _hals_pass(X, problem, living, _balance(problem, D), threads)
    return _balance(problem, D), inner


def _hals_pass(
    X: TensorLike, problem: Problem, living: Sequence[Float64], before: Sequence[Float64], threads: Threads
) -> tuple[list[Float64], Float64]:
    """Sweep once over D by HALS, against the residual X − F with the MTTKRP MTTKRP(D) − Fₙ (∗ over m ≠ n of FₘᵀDₘ).

    With missing entries, one Gram per row replaces both products.
    """
    from sparse_ncp.solvers.kernels.hals import hals_rows  # numba, see methods/hals.py

    D = list(before)
    working = [A.astype(X.dtype, copy=False) for A in D]
    products, grams = X.sweep(working, X.first_contraction(working)), X.observed.cross_grams(living, D)
    for (mode, M), (cross, own) in zip(products, grams, strict=False):
        C = M - times_rows(living[mode], cross)
        Q = own + problem.alpha[mode] * np.eye(D[0].shape[1])
        D[mode] = update_rows(hals_rows, D[mode], C - problem.beta[mode], Q, threads, 1)
        working[mode] = D[mode].astype(X.dtype, copy=False)
    return D, np.einsum("ir,ir->r", C, D[mode])


def _select_components(X: TensorLike, problem: Problem, D: list[Float64], inner: Float64) -> list[Float64] | None:
    """Select the new components that together lower the objective; None if there are none."""
    G, penalties = X.observed.overlap(D), problem.penalty_per_component(D)
    kept = np.flatnonzero(weights(D) > DEAD_SHARE * X.norm)
    while kept.size:
        change = -inner[kept] + G[np.ix_(kept, kept)].sum(axis=1) - np.diag(G)[kept] / 2 + penalties[kept]
        worst = int(change.argmax())
        if change[worst] < 0:
            return [A[:, kept] for A in D]
        kept = np.delete(kept, worst)
    return None


def _balance(problem: Problem, D: Sequence[Float64]) -> list[Float64]:
    return [A * scale for A, scale in zip(D, best_scales(problem, D), strict=True)]
