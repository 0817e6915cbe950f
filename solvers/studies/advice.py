"""Advice of a choice: the number of components, with the evidence for it and how sure it is."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import WithJsonSchema

from sparse_ncp.solvers.metrics import weights
from sparse_ncp.solvers.studies.evidence.residuals import Residuals
from sparse_ncp.solvers.studies.evidence.vote import Ballot, Confidence, Criteria, Verdict, merged
from sparse_ncp.solvers.studies.fitting.fits import Factors
from sparse_ncp.solvers.tensor.exclusion import Indices, exclude_with
from sparse_ncp.solvers.zeros import ZeroFibres, Zeros, zeros_notes

# A component is a background if its columns are this close to constant: the product of cosines over the modes.
FLAT = 0.85
# Confidence is at most "yes" where noise may hide a component of more than this fraction of the tensor's variation.
MOST_HIDDEN = 0.025
# A tensor that varies less than this fraction of what noise may hide is constant but for rounding.
LEAST_VARIATION = 1e-6
# A component is in a single sample if that has more than this fraction of its squared scores.
OF_ONE_SAMPLE = 0.9

# A matrix does not determine its components: a rotation of them may fit as well.
FEWEST_MODES = 3

# Names of the criteria in messages.
WORDS = {
    "gain": "gain over the noise",
    "cliff": "steepest fall in gain",
    "agreement": "agreement of the seeds",
    "prediction": "prediction of left-out readings",
    "cold_prediction": "prediction by fits that never saw these",
    "halves": "halves of the samples",
    "bootstrap": "resampled samples",
    "core": "core consistency",
}

# A list of two in the schema: few generators of clients know tuples.
Range: TypeAlias = Annotated[
    tuple[int, int], WithJsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2})
]


@dataclass(frozen=True)
class OtherZeros:
    """The number of components if zeros that look like missing readings are taken the other way."""

    zeros: Zeros
    suggestion: int
    confidence: Confidence


@dataclass(frozen=True)
class Advice:
    """The number of components that a choice finds, how sure it is, and why.

    Attributes
    ----------
    components
        The number of components; None unless it is sure.
    suggestion
        The number of components of the suggested model.
    range
        The lowest and the highest number that has more than a few of the votes.
    confidence
        How sure the number is: very, yes or no.
    residuals_white
        Whether neighbouring residuals are independent along every mode.
    weakest_visible
        The norm of the weakest component that would have been detected, in units of the tensor.
    criteria
        The number by each criterion alone.
    sparsity, beta
        Settings with which the recommended settings keep just these components; None if none was found.
    reason
        The advice in words.
    share
        The share of the votes that the suggestion has.
    single_samples
        The samples, counted from 0, that have one of the suggested components to themselves: one entry for each such
        component.
    outlying_samples
        The samples, counted from 0 and the worst first, that a model of the others does not fit.
    other_zeros
        What the tensor gives if zeros that look like missing readings are taken the other way; None without such zeros.
    """

    components: int | None
    suggestion: int
    range: Range
    confidence: Confidence
    residuals_white: bool
    weakest_visible: float
    criteria: Criteria
    sparsity: float | None
    beta: float | None
    reason: str
    share: float | None = None  # this one and the next ones: None and empty in records of older versions
    single_samples: tuple[int, ...] = ()
    outlying_samples: tuple[int, ...] = ()
    other_zeros: OtherZeros | None = None


@dataclass(frozen=True)
class Evidence:
    """Evidence for the number of components."""

    ballots: Sequence[Ballot]
    verdict: Verdict
    residuals: Residuals  # of the suggested model
    is_noise: bool  # not even one component stands out
    weakest_visible: float
    variation: float  # norm of the tensor minus its mean, so that a background does not count
    outlying: Sequence[int]  # samples that a model of the others does not fit
    samples_mode: int
    exclude: Mapping[int, Sequence[int | str]] | None  # what is left out already
    seeds: int
    largest: int
    rank_asked: int
    rank: int

    @property
    def hidden_share(self) -> float:
        """The norm that noise may hide, as a fraction of the tensor's variation."""
        is_varying = self.variation > LEAST_VARIATION * self.weakest_visible
        return self.weakest_visible / self.variation if is_varying else math.inf


def advise(evidence: Evidence, factors: Factors, samples: Indices) -> Advice:
    """Return the advice, except for the sparsity, which takes further runs.

    Parameters
    ----------
    evidence
        The evidence for the number of components.
    factors
        The factors of the suggested model, with the samples as the first mode.
    samples
        The numbers that these samples have in the whole tensor.
    """
    verdict, own = evidence.verdict, tuple(int(samples[place]) for place in single_samples(factors[0]))
    confidence, doubts = verdict.confidence, [*_doubts(evidence, factors, own)]
    if evidence.is_noise or doubts:
        confidence = "no"
    elif confidence == "very" and (own or evidence.outlying or evidence.hidden_share > MOST_HIDDEN):
        confidence = "yes"
    return Advice(
        components=verdict.suggestion if confidence != "no" else None,
        suggestion=verdict.suggestion,
        range=verdict.range,
        confidence=confidence,
        share=verdict.share,
        residuals_white=evidence.residuals.white,
        weakest_visible=evidence.weakest_visible,
        single_samples=own,
        outlying_samples=tuple(evidence.outlying),
        criteria=merged([ballot.criteria for ballot in evidence.ballots]),
        sparsity=None,
        beta=None,
        reason="; ".join(_reasons(evidence, factors, own, confidence, doubts)),
    )


def with_other_zeros(advice: Advice, other: Advice, zeros: Zeros, found: Sequence[ZeroFibres]) -> Advice:
    """Return the advice with what the tensor gives if the zeros that look missing are taken the other way.

    A number that rests on zeros that look missing is not sure if it is another one without them.
    """
    turned: Zeros = "missing" if zeros == "readings" else "readings"
    sure = "" if other.confidence == "no" else ", and that is sure"
    notes = [*zeros_notes(found, zeros), f"taken as {turned}, they give {_counted(other.suggestion)}{sure}"]
    is_doubtful = zeros == "readings" and other.suggestion != advice.suggestion
    return replace(
        advice,
        components=None if is_doubtful else advice.components,
        confidence="no" if is_doubtful else advice.confidence,
        other_zeros=OtherZeros(turned, other.suggestion, other.confidence),
        reason="; ".join([advice.reason, *notes]),
    )


def single_samples(scores: Sequence[Sequence[float]] | np.ndarray) -> tuple[int, ...]:
    """Return the sample of each component that is in a single sample; with fewer than three samples there is none."""
    squares = np.square(np.asarray(scores, np.float64))
    if len(squares) < 3:
        return ()
    shares = squares.max(axis=0) / np.maximum(squares.sum(axis=0), np.finfo(float).tiny)
    return tuple(int(squares[:, place].argmax()) for place in np.flatnonzero(shares > OF_ONE_SAMPLE))


def _doubts(evidence: Evidence, factors: Factors, own: Sequence[int]) -> Iterator[str]:
    """Yield the reasons for which no number can be sure, independent of the criteria."""
    k = evidence.verdict.suggestion
    if evidence.seeds < 2:
        yield "1 seed cannot agree with another: give at least 2"
    if k >= evidence.largest:
        if evidence.rank < evidence.rank_asked:
            yield f"{_counted(k)} are the most that a tensor with so few readings can show"
        else:
            yield f"a rank of {evidence.rank} cannot show more components: raise rank above {evidence.rank}"
    if sum(len(A) > 1 for A in factors) < FEWEST_MODES:
        yield "with fewer than three modes longer than 1, other components may fit as well"
    if len(own) == k:
        yield "no component is in more than one sample"


def _counted(components: int) -> str:
    return "1 component" if components == 1 else f"{components} components"


def _reasons(
    evidence: Evidence, factors: Factors, own: Sequence[int], confidence: Confidence, doubts: Sequence[str]
) -> Iterator[str]:
    verdict, k = evidence.verdict, evidence.verdict.suggestion
    if evidence.is_noise:
        yield "nothing stands out from the noise: even one component gains no more than noise would"
        return
    votes = [ballot.voting() for ballot in evidence.ballots]
    names = dict.fromkeys(name for named in votes for name in named)
    agreeing = [name for name in names if any(named.get(name) == k for named in votes)]
    count = _counted(k)
    if len(own) == k:
        count += " in one sample alone" if k == 1 else ", each in one sample alone"
    elif own:
        each = "is in one sample alone" if len(own) == 1 else "are in one sample each"
        count += f", of which {len(own)} {each}"
    yield f"{count}: {verdict.share:.0%} of the votes ({', '.join(WORDS[name] for name in agreeing) or 'no criterion'})"
    others = {name: sorted({named[name] for named in votes if name in named} - {k}) for name in names}
    if differing := [f"{WORDS[name]} {' or '.join(map(str, found))}" for name, found in others.items() if found]:
        yield f"others: {', '.join(differing)}"
    if places := [*dict.fromkeys([*own, *evidence.outlying])]:
        named = ", ".join(map(str, places))
        which = f"sample {named}" if len(places) == 1 else f"samples {named}"
        what = "is unlike the others" if len(places) == 1 else "are unlike the others"
        without = exclude_with(evidence.exclude or {}, {evidence.samples_mode: places})
        yield f"{which} (counted from 0) {what}: look, and if that is an error, choose again with {without}"
    misfit = evidence.residuals.misfit()
    if misfit is not None:
        yield misfit
    yield from doubts
    if evidence.rank < evidence.rank_asked and k < evidence.largest:
        yield f"the tensor has too few readings for more than {_counted(evidence.largest)}"
    if confidence != "no" and math.isfinite(evidence.hidden_share):
        share = f"{evidence.hidden_share:.1%} of the tensor's variation"
        yield f"components weaker than {evidence.weakest_visible:.3g}, {share}, cannot be detected"
    cosines = np.prod([A.sum(axis=0) / np.sqrt(len(A)) for A in factors], axis=0)
    if (cosines > FLAT * weights(factors)).any():
        yield "one component is flat in every mode: a background"
