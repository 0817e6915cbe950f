"""Weigh the evidence of a choice, and conclude."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sparse_ncp.solvers.diagnostics.outliers import find_outliers
from sparse_ncp.solvers.metrics import weights
from sparse_ncp.solvers.studies.advice import Evidence, advise, with_other_zeros
from sparse_ncp.solvers.studies.evidence.core import core_consistency
from sparse_ncp.solvers.studies.evidence.curve import PER_COMPONENT, Curve, unit_gain
from sparse_ncp.solvers.studies.evidence.residuals import Residuals
from sparse_ncp.solvers.studies.evidence.vote import Ballot, Verdict, criteria, decide
from sparse_ncp.solvers.studies.fitting.candidates import Candidate, Effort, Judge, agreement
from sparse_ncp.solvers.studies.fitting.fits import Data, Factors, descend_deviance, model
from sparse_ncp.solvers.studies.fitting.inputs import Inputs
from sparse_ncp.solvers.studies.fitting.noise import Clipped, Counts, Gaussian, Noise
from sparse_ncp.solvers.studies.fitting.sparsity import matching_run
from sparse_ncp.solvers.studies.state import Choice, ChoiceState, Point, View
from sparse_ncp.solvers.studies.validation import validated
from sparse_ncp.solvers.tensor.threads import Threads

# Effort for the suggested model.
FINAL = Effort(1000, 1e-7)
# Kind of the random sequence from which residuals of clipped readings and counts are drawn.
_RESIDUAL = 5


@dataclass(frozen=True)
class Weighing:
    """The evidence of a choice so far, with the tensor it is about, samples first and in units of its root mean square.

    `data`, `judge` and `deviation` are those of the state's last view.
    """

    raw: Data
    state: ChoiceState

    @cached_property
    def data(self) -> Data:
        return self.data_of(self.state.view)

    @cached_property
    def judge(self) -> Judge:
        return self.judge_of(self.state.view)

    @cached_property
    def deviation(self) -> float:
        """The root mean square of the noise, in units of that of the tensor."""
        return math.sqrt(float(self.judge.variance.mean()))

    @cached_property
    def counts(self) -> Counts:
        fit = min(self.state.view.chains, key=lambda made: made.overfit.error).overfit
        expected = self.raw.select(model(self.state.view.scaling.restore(fit.factors)))
        return Counts.estimate(self.raw.entries, expected, fit.parameters)

    def data_of(self, view: View) -> Data:
        return Data(view.scaling.apply(self.raw.X), self.raw.observed, view.deviation)

    def judge_of(self, view: View) -> Judge:
        """Judge fits by the noise that the best overfit leaves."""
        data = self.data_of(view)
        lowest = min((made.overfit for made in view.chains), key=lambda fit: fit.error)
        reference = data.select(model(lowest.factors))
        noise: Noise = Gaussian.estimate(data.entries, reference, lowest.parameters)
        if view.deviation is not None:
            noise = Clipped(view.deviation)
        return Judge(data, noise, noise.variance(reference))

    def deviance(self, factors: Factors) -> float:
        expected = self.raw.select(model(factors))
        return self.counts.loss(self.raw.entries, expected, expected)

    @cached_property
    def likelihood(self) -> Curve | None:
        """The curve of the deviance of counts; None for other noise."""
        if not self.state.likeliest:
            return None
        u = unit_gain(self.state.shape)
        nothing = self.counts.loss(self.raw.entries, np.zeros_like(self.raw.entries), self.raw.entries)
        return Curve({0: nothing / u} | {k: found.loss / u for k, found in self.state.likeliest.items()})

    def curve(self, judge: Judge, best: Mapping[int, Candidate]) -> Curve:
        u = unit_gain(self.state.shape)
        return Curve({0: judge.loss_of_nothing() / u} | {k: found.loss / u for k, found in best.items()})

    def residuals(self, judge: Judge, view: View, components: int) -> Residuals:
        """Return the residuals of a number of components, those of counts against their own noise."""
        random = np.random.default_rng(np.random.SeedSequence(self.state.settings.seed, spawn_key=(_RESIDUAL,)))
        if self.state.likeliest:
            counted = Judge(self.raw, self.counts, judge.variance)
            return Residuals.of(counted, self.state.likeliest[max(1, components)].factors, random)
        return Residuals.of(judge, view.best[max(1, components)].factors, random)

    def ballot(self, view: View) -> Ballot:
        judge, largest = self.judge_of(view), self.state.largest
        curve = self.curve(judge, view.best)
        numbers = sorted(view.best)
        found = criteria(
            curve,
            largest,
            {k: agreement([made.models[k] for made in view.chains]) for k in numbers},
            view.predictions,
            view.halves,
            view.bootstraps,
            {k: core_consistency(judge.data, view.best[k].factors) for k in numbers},
            len(view.chains),
        )
        if self.likelihood is not None:
            found = replace(found, gain=self.likelihood.best())
        return Ballot(found, curve.cliff(), self.residuals(judge, view, found.gain or 0), largest)

    @cached_property
    def ballots(self) -> tuple[Ballot, ...]:
        return tuple(self.ballot(view) for view in self.state.views)

    @cached_property
    def verdict(self) -> Verdict:
        return decide(self.ballots)

    def suggested(self) -> tuple[int, Candidate]:
        """Return the suggested number, and its model in units of the tensor's root mean square, refitted."""
        k, view = self.verdict.suggestion, self.state.views[0]
        if self.state.likeliest:
            factors = descend_deviance(self.raw, self.state.likeliest[k].factors, FINAL.sweeps, self.counts)
            return k, Candidate(factors, self.deviance(factors))
        fitted = self.judge_of(view).fitted(view.best[k].factors, FINAL)
        return k, Candidate(view.scaling.restore(fitted.factors), fitted.loss)


def conclude(inputs: Inputs, state: ChoiceState, pool: Threads) -> Choice:
    """Return the outcome of a choice all of whose steps are done, with factors in units of the tensor."""
    raw = inputs.data
    weighing, view = Weighing(raw, state), state.views[0]
    if state.chosen is None:
        raise ValueError("the choice has no model yet")
    judge = weighing.judge_of(view)
    curve = weighing.likelihood or weighing.curve(judge, view.best)
    size = math.sqrt(PER_COMPONENT * unit_gain(state.shape)) * weighing.deviation
    evidence = Evidence(
        ballots=weighing.ballots,
        verdict=weighing.verdict,
        residuals=weighing.residuals(judge, view, state.suggestion),
        is_noise=all(ballot.criteria.gain == 0 for ballot in weighing.ballots),
        weakest_visible=size * state.unit,
        variation=math.sqrt(raw.entries.size) * float(raw.entries.std()) * state.unit,
        outlying=_outlying(inputs, state.chosen.factors, state.settings.samples_mode, pool),
        samples_mode=state.settings.samples_mode,
        exclude=state.settings.exclude,
        seeds=state.settings.seeds,
        largest=state.largest,
        rank_asked=state.settings.rank,
        rank=state.rank,
    )
    advice = advise(evidence, state.chosen.factors, inputs.samples)
    if inputs.other is not None and state.other is not None:
        other = conclude(inputs.other, state.other, pool).advice
        advice = with_other_zeros(advice, other, state.settings.zeros, inputs.zero_fibres)
    run = matching_run(state.sparsity_runs, state.suggestion)
    if run is None and state.sparsity_runs and not evidence.is_noise:
        advice = replace(advice, reason=f"{advice.reason}; no sparsity that was tried keeps just these components")
    elif run is not None:
        advice = replace(advice, sparsity=run.sparsity, beta=run.beta)
    norm = float(np.linalg.norm(raw.entries))

    def relative_error(factors: Factors) -> float:
        return float(np.linalg.norm(raw.entries - raw.select(model(factors)))) / norm

    points = tuple(
        Point(
            components=k,
            relative_error=relative_error(view.scaling.restore(view.best[k].factors)),
            gain=curve.gain(k - 1),
            agreement=agreement([made.models[k] for made in view.chains]),
            core_consistency=core_consistency(judge.data, view.best[k].factors),
            votes=math.fsum(ballot.shares().get(k, 0.0) for ballot in weighing.ballots) / len(weighing.ballots),
        )
        for k in range(1, state.largest + 1)
    )
    return Choice(
        advice=advice,
        factors=tuple(A * state.unit ** (1 / raw.X.ndim) for A in state.chosen.factors),
        relative_error=relative_error(state.chosen.factors),
        noise=state.kind,
        noise_level=weighing.deviation,
        points=points,
        validated=validated(state.settings.validation, state.numbers_to_validate, state.checked),
    )


def _outlying(inputs: Inputs, factors: Factors, samples_mode: int, pool: Threads) -> tuple[int, ...]:
    """Return the samples that the model of the others does not fit, the worst first."""
    alive = weights(factors) > 0
    residual = inputs.data.X - model(factors)
    residual.reshape(-1)[inputs.data.missing] = 0.0
    suspicion = np.square(residual, out=residual).sum(axis=tuple(range(1, residual.ndim)))
    samples, *others = [A[:, alive] * inputs.unit ** (1 / len(factors)) for A in factors]
    given = (*others[: samples_mode - 1], samples, *others[samples_mode - 1 :])
    kept = [np.arange(len(A)) for A in given]
    found = find_outliers(inputs.tensor, given, samples_mode - 1, suspicion, pool, kept, inputs.mask)
    return tuple(int(inputs.samples[outlier.index]) for outlier in found.outliers) if found else ()
