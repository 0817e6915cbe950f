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
    descend_deviance,
    dropped,
    model,
    overfit,
    with_one_more,
)
from sparse_ncp.solvers.studies.fitting.noise import Clipped, Counts, Noise, NoiseKind, estimate
from sparse_ncp.solvers.tensor.products import Float64


class Effort(NamedTuple):
    """Limits of a fit: sweeps of least squares, their tolerance, and sweeps that lower the deviance of counts."""

    sweeps: int
    tolerance: float
    deviance_sweeps: int


# Effort for the overfit, after each drop, for the model kept at each number of components, for the models among which
# the rule decides, and for those of simulated tensors.
OVERFIT, CHAIN = Effort(80, 1e-5, 0), Effort(40, 1e-5, 30)
KEPT, POLISHED = Effort(60, 1e-6, 30), Effort(1000, 1e-7, 200)
SIMULATED = Effort(60, 1e-6, 100)
# How many components are tried for removal, the cheapest first, and the sweeps of each trial.
TRIED, TRIAL_SWEEPS = 5, 2
# Similarity from which two fits count as converging to the same model.
SAME = 0.98
# Components that are fitted to a residual, of which the best is kept.
PUT_BACKS = 2


@dataclass(frozen=True)
class Chain:
    """Models of one seed: an overfit, and the model that remains at each number of components."""

    overfit: Fit
    models: Mapping[int, Factors]


@dataclass(frozen=True)
class Judge:
    """Computes the loss of models, with one tensor, one noise and one variance for all of them."""

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
        """Return a judge of another tensor with the same noise."""
        return Judge(self.data.like(X), self.noise, self.variance)


@dataclass(frozen=True)
class Candidate:
    factors: Factors
    loss: float


def first_overfit(data: Data, kind: NoiseKind, rank: int, random: np.random.Generator) -> tuple[Fit, Noise]:
    """Fit an overfit and estimate its noise; for clipped noise in turns, since each needs the other."""
    fit = overfit(data, rank, random, OVERFIT.sweeps, OVERFIT.tolerance)
    noise = estimate(kind, data.X, model(fit.factors), fit.parameters)
    if isinstance(noise, Clipped):
        for _ in range(3):
            fit = descend(data, fit.factors, OVERFIT.sweeps // 4, OVERFIT.tolerance, noise)
            noise = estimate(kind, data.X, model(fit.factors), fit.parameters)
    return fit, noise


def chain(data: Data, noise: Noise, start: Fit, largest: int) -> Chain:
    """Drop the cheapest component again and again, and keep the models of at most `largest` components."""
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
    """Continue from the least-squares fit to the lowest loss, where the two differ."""
    return descend_deviance(data, factors, effort.deviance_sweeps, noise) if isinstance(noise, Counts) else factors


def best_of(judge: Judge, chains: Sequence[Chain]) -> dict[int, Candidate]:
    """Return the model of lowest loss among the seeds, refitted, for every number of components."""
    best = {}
    for components in sorted(chains[0].models):
        lowest = min((chain.models[components] for chain in chains), key=judge.loss)
        best[components] = judge.fitted(lowest, KEPT)
    return best


def exchange(judge: Judge, best: Mapping[int, Candidate], random: np.random.Generator) -> dict[int, Candidate]:
    """Replace models by those with a component added or removed, where the loss is lower."""
    found = dict(best)
    for components in sorted(found)[:-1]:
        more = judge.fitted(with_one_more(judge.data, found[components].factors, judge.noise, random), KEPT)
        found[components + 1] = _lower(found[components + 1], more)
    for components in sorted(found, reverse=True)[:-1]:
        less = judge.fitted(best_drop(judge, found[components].factors), KEPT)
        found[components - 1] = _lower(found[components - 1], less)
    return found


def best_drop(judge: Judge, factors: Factors) -> Factors:
    """Return the best model with one component removed, trying each."""
    trials = [
        descend(judge.data, dropped(factors, component), TRIAL_SWEEPS, 0.0, judge.noise)
        for component in range(factors[0].shape[1])
    ]
    return min(trials, key=lambda trial: trial.error).factors


def polished(
    judge: Judge, best: Mapping[int, Candidate], chains: Sequence[Chain], components: int, random: np.random.Generator
) -> Candidate:
    """Return the best model of a number of components, refitted from all candidates for it."""
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
    """Return the gain of one more component on a tensor simulated from this model, where only noise is left."""
    made = judge.like(judge.noise.simulate(model(at.factors), random))
    refitted = made.fitted(at.factors, SIMULATED)
    starts = [with_one_more(made.data, refitted.factors, made.noise, random) for _ in range(PUT_BACKS)]
    return refitted.loss - min(made.fitted(start, SIMULATED).loss for start in starts)


def agreement(models: Sequence[Factors]) -> float:
    """Return the median similarity over pairs of seeds."""
    pairs = [similarity(one, other) for place, one in enumerate(models) for other in models[place + 1 :]]
    return float(np.median(pairs)) if pairs else 0.0


def similarity(one: Factors, other: Factors) -> float:
    """Return the cosine of the worst matched component, multiplied over the modes."""
    return float(congruences(one, other).prod(axis=0).min())


def _lower(one: Candidate, other: Candidate) -> Candidate:
    return other if other.loss < one.loss else one
