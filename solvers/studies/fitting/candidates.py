"""Candidate models of every number of components, found by dropping components from an overfit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparse_ncp.solvers.metrics import congruences
from sparse_ncp.solvers.studies.fitting.fits import (
    Data,
    Factors,
    Fit,
    cheapest_first,
    descend,
    dropped,
    model,
    with_one_more,
)
from sparse_ncp.solvers.studies.fitting.noise import Noise
from sparse_ncp.solvers.tensor.products import Float64


class Effort(NamedTuple):
    """Limits of a fit: sweeps, and the tolerance."""

    sweeps: int
    tolerance: float


# Effort after each drop, for the model kept at each number of components, and for the models that are compared.
CHAIN, KEPT, POLISHED = Effort(40, 1e-5), Effort(60, 1e-6), Effort(150, 1e-7)
# How many components are tried for removal, the cheapest first, and the sweeps of each trial.
TRIED, TRIAL_SWEEPS = 5, 2
# Sweeps before the first removal: the overfit may come from other data.
SETTLING_SWEEPS = 4


@dataclass(frozen=True)
class Chain:
    """Models of one seed: an overfit, and the model that remains at each number of components."""

    overfit: Fit
    models: Mapping[int, Factors]


@dataclass(frozen=True)
class Candidate:
    factors: Factors
    loss: float


@dataclass(frozen=True)
class Judge:
    """Computes the loss of models, with one tensor, one noise and one variance for all of them."""

    data: Data
    noise: Noise
    variance: Float64  # of the observed entries

    def loss(self, factors: Factors) -> float:
        return self.noise.loss(self.data.entries, self.data.select(model(factors)), self.variance)

    def loss_of_nothing(self) -> float:
        return self.noise.loss(self.data.entries, np.zeros_like(self.data.entries), self.variance)

    def fitted(self, factors: Factors, effort: Effort) -> Candidate:
        fit = descend(self.data, factors, *effort)
        return Candidate(fit.factors, self.loss(fit.factors))


def chain(data: Data, start: Fit, largest: int, sweeps: int = CHAIN.sweeps, tried: int = TRIED) -> Chain:
    """Drop the cheapest component again and again, and keep the models of at most `largest` components."""
    models: dict[int, Factors] = {}
    fit = descend(data, start.factors, SETTLING_SWEEPS, CHAIN.tolerance)
    while True:
        if fit.components <= largest:
            models[fit.components] = fit.factors
        if fit.components == 1:
            return Chain(start, models)
        trials = [
            descend(data, dropped(fit.factors, component), TRIAL_SWEEPS, 0.0)
            for component in cheapest_first(fit.factors)[:tried]
        ]
        cheapest = min(trials, key=lambda trial: trial.error)
        fit = descend(data, cheapest.factors, sweeps, CHAIN.tolerance)


def best_of(judge: Judge, chains: Sequence[Chain]) -> dict[int, Candidate]:
    """Return the model of lowest loss among the seeds, refitted, for every number of components."""
    return {
        components: judge.fitted(min((made.models[components] for made in chains), key=judge.loss), KEPT)
        for components in sorted(chains[0].models)
    }


def exchange(judge: Judge, best: Mapping[int, Candidate], random: np.random.Generator) -> dict[int, Candidate]:
    """Replace models by those with a component added or removed, where the loss is lower, and refit all of them."""
    found = dict(best)
    for components in sorted(found)[:-1]:
        more = judge.fitted(with_one_more(judge.data, found[components].factors, random), KEPT)
        found[components + 1] = lower(found[components + 1], more)
    for components in sorted(found, reverse=True)[:-1]:
        factors = found[components].factors
        trials = [descend(judge.data, dropped(factors, place), TRIAL_SWEEPS, 0.0) for place in range(components)]
        less = judge.fitted(min(trials, key=lambda trial: trial.error).factors, KEPT)
        found[components - 1] = lower(found[components - 1], less)
    return {k: lower(candidate, judge.fitted(candidate.factors, POLISHED)) for k, candidate in found.items()}


def agreement(models: Sequence[Factors]) -> float:
    """Return the median similarity over pairs of seeds."""
    pairs = [similarity(one, other) for place, one in enumerate(models) for other in models[place + 1 :]]
    return float(np.median(pairs)) if pairs else 0.0


def similarity(one: Sequence[Float64], other: Sequence[Float64]) -> float:
    """Return the cosine of the worst matched component, multiplied over the modes."""
    return float(congruences(one, other).prod(axis=0).min())


def lower(one: Candidate, other: Candidate) -> Candidate:
    return other if other.loss < one.loss else one
