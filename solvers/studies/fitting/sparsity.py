"""The search for a sparsity with which the recommended settings keep just the chosen components."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.loop import solve
from sparse_ncp.solvers.errors import AdviceWarning
from sparse_ncp.solvers.metrics import DEAD_SHARE
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.studies.fitting.candidates import similarity
from sparse_ncp.solvers.studies.fitting.fits import Factors

# Runs spent on the search.
SPARSITY_RUNS = 6
# The similarity from which a sparsity counts as keeping just the chosen components.
SAME_COMPONENTS = 0.9
LEAST_SPARSITY, MOST_SPARSITY = 1e-6, 0.9


@dataclass(frozen=True)
class SparsityRun:
    """A run of the recommended settings with a sparsity, and how well it matches the chosen model."""

    sparsity: float
    beta: float
    components: int
    match: float


def matching_run(runs: Sequence[SparsityRun], components: int) -> SparsityRun | None:
    """Return the run that kept just the chosen components; None if there is none."""
    fitting = [run for run in runs if run.components == components and run.match > SAME_COMPONENTS]
    return max(fitting, key=lambda run: run.match, default=None)


def next_sparsity(runs: Sequence[SparsityRun], components: int, weakest: float, noise: float) -> float:
    """Return a sparsity between the noise and the weakest component, narrowed by the earlier runs.

    It is the geometric mean of the largest one that kept too many components and the smallest one that did not;
    `weakest` and `noise` are norms, as fractions of the tensor's.
    """
    low = max((run.sparsity for run in runs if run.components > components), default=None)
    high = min((run.sparsity for run in runs if run.components <= components), default=None)
    if low is None:
        low = min(noise, (weakest if high is None else high) / 4)
    if high is None:
        high = max(weakest, 2 * low)
    return float(np.clip(math.sqrt(low * high), LEAST_SPARSITY, MOST_SPARSITY))


def run_with(
    tensor: NDArray[Any], settings: Settings, mask: NDArray[np.bool_] | None, chosen: Factors, norm: float, threads: int
) -> SparsityRun:
    """Run settings that have a sparsity, and compare the components that are left with the chosen ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)
        result = solve(tensor, settings, mask=mask, threads=threads)
    alive = result.weights > DEAD_SHARE * norm
    left = tuple(A[:, alive].astype(np.float64) for A in result.factors)
    match = similarity(left, chosen) if left[0].shape[1] == chosen[0].shape[1] else 0.0
    sparsity = settings.sparsity if isinstance(settings.sparsity, float) else 0.0
    return SparsityRun(sparsity, result.resolved.beta[0], int(alive.sum()), match)
