"""Do other samples give the same components? Bootstraps of the samples, and halves of them fitted apart."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.metrics import congruences
from sparse_ncp.solvers.studies.fitting.candidates import Candidate, chain, similarity
from sparse_ncp.solvers.studies.fitting.fits import Data, Factors, Fit, descend, overfit

# Fewer samples than this have no halves.
LEAST_SAMPLES = 4
# Sweeps and tolerance of a bootstrap, which starts from the model of all samples.
BOOTSTRAP_SWEEPS, BOOTSTRAP_TOLERANCE = 30, 1e-4
# Of a half: sweeps of its overfit, after each drop, and of the fits that start from its own or from the whole model.
OVERFIT_SWEEPS, CHAIN_SWEEPS, COLD_SWEEPS, WARM_SWEEPS, TOLERANCE = 50, 30, 20, 40, 1e-5
TRIED = 3
# Components of a half's overfit beyond the largest model, and parameters as a fraction of its entries.
MORE, LARGEST_SHARE = 2, 0.4


def bootstrap(data: Data, best: Mapping[int, Candidate], random: np.random.Generator) -> dict[int, tuple[float, ...]]:
    """Draw as many samples as there are, with repetition, and refit every model from a warm start.

    Returns the congruence of each component with its refitted self, multiplied over the other modes.
    """
    samples = np.sort(random.integers(0, len(data.X), len(data.X)))
    drawn, found = data.take(samples), {}
    for k, candidate in best.items():
        scores, *profiles = candidate.factors
        refitted = descend(drawn, (scores[samples], *profiles), BOOTSTRAP_SWEEPS, BOOTSTRAP_TOLERANCE).factors
        found[k] = tuple(congruences(profiles, refitted[1:]).prod(axis=0).tolist())
    return found


def compare_halves(
    data: Data, best: Mapping[int, Candidate], rank: int, random: np.random.Generator
) -> dict[int, float] | None:
    """Fit halves of the samples apart, and return how alike the worst components of each number are."""
    drawn, middle = random.permutation(len(data.X)), len(data.X) // 2
    fits = []
    for samples in (np.sort(drawn[:middle]), np.sort(drawn[middle:])):
        half = data.take(samples)
        if len(data.X) < LEAST_SAMPLES or not _is_observed_everywhere(half):
            return None
        allowed = int(LARGEST_SHARE * half.entries.size / sum(half.X.shape))
        start = overfit(half, min(rank, max(best) + MORE, max(2, allowed)), random, OVERFIT_SWEEPS, TOLERANCE)
        own = chain(half, start, max(best), CHAIN_SWEEPS, TRIED).models
        fits.append({k: _fit_half(half, samples, candidate, own.get(k)) for k, candidate in best.items()})
    return {k: similarity(fits[0][k].factors[1:], fits[1][k].factors[1:]) for k in best}


def _fit_half(half: Data, samples: NDArray[np.intp], whole: Candidate, own: Factors | None) -> Fit:
    """Return the better of two fits to a half, from the whole model and from the half's own chain."""
    scores, *profiles = whole.factors
    warm = descend(half, (scores[samples], *profiles), WARM_SWEEPS, TOLERANCE)
    if own is None:
        return warm
    cold = descend(half, own, COLD_SWEEPS, TOLERANCE)
    return min(warm, cold, key=lambda fit: fit.error)


def _is_observed_everywhere(data: Data) -> bool:
    """Return whether every index of every mode has a reading; a slice without one could not be fitted."""
    if data.observed is None:
        return True
    axes = range(data.X.ndim)
    return all(data.observed.any(axis=tuple(other for other in axes if other != mode)).all() for mode in axes)
