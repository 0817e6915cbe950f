"""Candidate models of every number of components: found by dropping components from an overfit, not by a penalty."""

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
    descend_deviance,
    dropped,
    model,
    overfit,
    with_one_more,
)
from sparse_ncp.solvers.studies.fitting.noise import Clipped, Counts, Noise, NoiseKind, estimate
from sparse_ncp.solvers.tensor.products import Float64


class Effort(NamedTuple):
    """Sweeps of least squares at most, the tolerance that ends them, and sweeps that lower the deviance of counts."""

    sweeps: int
    tolerance: float
    deviance_sweeps: int


# Of the overfit, after each drop, of the model that is kept for a number of components, of the models among which the
# rule decides, and of those of simulated tensors.
OVERFIT, CHAIN = Effort(80, 1e-5, 0), Effort(40, 1e-5, 30)
KEPT, POLISHED = Effort(60, 1e-6, 30), Effort(1000, 1e-7, 200)
SIMULATED = Effort(60, 1e-6, 100)
# Components whose removal is tried, the cheapest first, and the sweeps of each trial.
TRIED, TRIAL_SWEEPS = 5, 2
# Two fits are on the way to the same model from this similarity on.
SAME = 0.98
# Components that are fitted to a residual, of which the best stays.
PUT_BACKS = 2


@dataclass(frozen=True)
class Chain:
    """What one seed found: an overfit, and the model that was left at each number of components."""

    overfit: Fit
    models: Mapping[int, Factors]


@dataclass(frozen=True)
class Judge:
    """The loss of a model: one tensor, one noise, one variance for all that are compared."""

    data: Data
    noise: Noise
    variance: Float64

    def loss(self, factors: Factors) -> float:
        return self.noise.loss(self.data.X, model(factors), self.variance)

    def loss_of_nothing(self) -> float:
        return self.noise.loss(self.data.X, np.zeros_like(self.data.X), self.variance)

    def fitted(self, factors: Factors, effort: Effort) -> "Candidate":
        fit = descend(self.data, factors, effort.sweeps, effort.tolerance, self.noise)
        factors = _likeliest(self.data, fit.factors, self.noise, effort)
        return Candidate(factors, self.loss(factors))

    def like(self, X: Float64) -> "Judge":
        """The same for another tensor with the same noise."""
        return Judge(self.data.like(X), self.noise, self.variance)


@dataclass(frozen=True)
class Candidate:
    factors: Factors
    loss: float


def first_overfit(data: Data, kind: NoiseKind, rank: int, random: np.random.Generator) -> tuple[Fit, Noise]:
    """An overfit, and the noise that it leaves; of clipped noise in turns, since each needs the other."""
    fit = overfit(data, rank, random, OVERFIT.sweeps, OVERFIT.tolerance)
    noise = estimate(kind, data.X, model(fit.factors), fit.parameters)
    if isinstance(noise, Clipped):
        for _ in range(3):
            fit = descend(data, fit.factors, OVERFIT.sweeps // 4, OVERFIT.tolerance, noise)
            noise = estimate(kind, data.X, model(fit.factors), fit.parameters)
    return fit, noise


def chain(data: Data, noise: Noise, start: Fit, largest: int) -> Chain:
    """Drop the component that costs least again and again; the models of `largest` components and fewer are kept."""
    models: dict[int, Factors] = {}
    if isinstance(noise, Clipped):
        start = descend(data, start.factors, OVERFIT.sweeps, OVERFIT.tolerance, noise)
    fit = start
    while True:
        if fit.components <= largest:
            models[fit.components] = _likeliest(data, fit.factors, noise, CHAIN)
        if fit.components == 1:
            return Chain(start, models)
        trials = [
            descend(data, dropped(fit.factors, component), TRIAL_SWEEPS, 0.0, noise)
            for component in cheapest_first(fit.factors)[:TRIED]
        ]
        cheapest = min(trials, key=lambda trial: trial.error)
        fit = descend(data, cheapest.factors, CHAIN.sweeps, CHAIN.tolerance, noise)


def _likeliest(data: Data, factors: Factors, noise: Noise, effort: Effort) -> Factors:
    """What least squares found, carried on to the least loss where that is another."""
    return descend_deviance(data, factors, effort.deviance_sweeps, noise) if isinstance(noise, Counts) else factors


def best_of(judge: Judge, chains: Sequence[Chain]) -> dict[int, Candidate]:
    """For every number of components, the seed's model of lowest loss, refitted."""
    best = {}
    for components in sorted(chains[0].models):
        lowest = min((chain.models[components] for chain in chains), key=judge.loss)
        best[components] = judge.fitted(lowest, KEPT)
    return best


def exchange(judge: Judge, best: Mapping[int, Candidate], random: np.random.Generator) -> dict[int, Candidate]:
    """Upwards with one component more, downwards with one less, where that is lower than what the seeds found."""
    found = dict(best)
    for components in sorted(found)[:-1]:
        more = judge.fitted(with_one_more(judge.data, found[components].factors, judge.noise, random), KEPT)
        found[components + 1] = _lower(found[components + 1], more)
    for components in sorted(found, reverse=True)[:-1]:
        less = judge.fitted(best_drop(judge, found[components].factors), KEPT)
        found[components - 1] = _lower(found[components - 1], less)
    return found


def best_drop(judge: Judge, factors: Factors) -> Factors:
    """One component less, all of them tried."""
    trials = [
        descend(judge.data, dropped(factors, component), TRIAL_SWEEPS, 0.0, judge.noise)
        for component in range(factors[0].shape[1])
    ]
    return min(trials, key=lambda trial: trial.error).factors


def polished(
    judge: Judge, best: Mapping[int, Candidate], chains: Sequence[Chain], components: int, random: np.random.Generator
) -> Candidate:
    """The best model of a number of components: also from each seed's own, two put-backs, and all drops from above."""
    starts = [best[components].factors, *(chain.models[components] for chain in chains)]
    if components - 1 in best:
        below = best[components - 1].factors
        starts += [with_one_more(judge.data, below, judge.noise, random) for _ in range(PUT_BACKS)]
    if components + 1 in best:
        starts.append(best_drop(judge, best[components + 1].factors))
    lowest, *others = sorted((judge.fitted(start, CHAIN) for start in starts), key=lambda fit: fit.loss)
    other = next((fit for fit in others if similarity(fit.factors, lowest.factors) < SAME), None)
    ends = [judge.fitted(fit.factors, POLISHED) for fit in (lowest, other) if fit is not None]
    return min(ends, key=lambda fit: fit.loss)


def simulated_gain(judge: Judge, at: Candidate, random: np.random.Generator) -> float:
    """What one component more gains on a tensor simulated from this model: nothing but noise is left to find."""
    made = judge.like(judge.noise.simulate(model(at.factors), random))
    refitted = made.fitted(at.factors, SIMULATED)
    starts = [with_one_more(made.data, refitted.factors, made.noise, random) for _ in range(PUT_BACKS)]
    return refitted.loss - min(made.fitted(start, SIMULATED).loss for start in starts)


def agreement(models: Sequence[Factors]) -> float:
    """How well the seeds agree on a model: the median over pairs of the worst matched component's cosine."""
    pairs = [similarity(one, other) for place, one in enumerate(models) for other in models[place + 1 :]]
    return float(np.median(pairs)) if pairs else 0.0


def similarity(one: Factors, other: Factors) -> float:
    """The worst matched component's cosine, multiplied over the modes."""
    return float(congruences(one, other).prod(axis=0).min())


def _lower(one: Candidate, other: Candidate) -> Candidate:
    return other if other.loss < one.loss else one
