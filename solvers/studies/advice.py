"""Advice of a choice: how many components there are, never a number alone, but with the evidence and how sure it is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import WithJsonSchema

from sparse_ncp.solvers.metrics import weights
from sparse_ncp.solvers.studies.fitting.fits import Factors
from sparse_ncp.solvers.studies.rule import AGREEING_SEEDS, Confidence, Curve, Null, Residuals

# A component is a background if its columns are this close to constant: the product of cosines over the modes.
FLAT = 0.85
# Confidence is at most "yes" where noise may hide a component of more than this fraction of the tensor's variation.
MOST_HIDDEN = 0.025


# A list of two in the schema: few generators of clients know tuples.
Range: TypeAlias = Annotated[
    tuple[int, int], WithJsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2})
]


@dataclass(frozen=True)
class Criteria:
    """The number of components by each criterion alone."""

    gain: int  # the least loss plus 0.95 u per component
    cliff: int  # after which the gains fall most steeply
    agreement: int  # up to which all seeds find the same


@dataclass(frozen=True)
class Advice:
    """The number of components that a choice finds, how sure it is, and why.

    Attributes
    ----------
    components
        The number of components; None if the residuals are not noise, so that components cannot be counted.
    suggestion
        The number of components of the suggested model.
    range
        The lowest and the highest number that any criterion gives.
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


@dataclass(frozen=True)
class Evidence:
    """Evidence for the number of components."""

    curve: Curve
    chosen: int
    rule_confidence: Confidence
    nulls: Mapping[int, Null]  # gain of one more component on simulated noise
    residuals: Residuals
    criteria: Criteria
    seeds: int
    seeds_agreeing: int  # seeds whose own model is the chosen one
    seeds_disagreeing: int  # seeds that fit as well with other components
    weakest_visible: float
    variation: float  # norm of the tensor minus its mean, so that a background does not count
    rank_asked: int
    rank: int

    @property
    def hidden_share(self) -> float:
        """The norm that noise may hide, as a fraction of the tensor's variation."""
        return self.weakest_visible / self.variation if self.variation > 0 else math.inf


def advise(evidence: Evidence, factors: Factors | None) -> Advice:
    """Return the advice, except for the sparsity, which takes further runs.

    Parameters
    ----------
    evidence
        The evidence for the number of components.
    factors
        The factors of the suggested model, if it is known.
    """
    seen = evidence.residuals
    suggestion = evidence.chosen if seen.white and evidence.chosen else max(1, evidence.criteria.cliff)
    confidence = _confidence(evidence)
    named = (suggestion, evidence.criteria.gain, evidence.criteria.cliff, evidence.criteria.agreement)
    return Advice(
        components=evidence.chosen if seen.white and evidence.chosen else None,
        suggestion=suggestion,
        range=(max(1, min(named)), max(named)),
        confidence=confidence,
        residuals_white=seen.white,
        weakest_visible=evidence.weakest_visible,
        criteria=evidence.criteria,
        sparsity=None,
        beta=None,
        reason="; ".join([*_reasons(evidence, suggestion, confidence), *_flat(factors)]),
    )


def _confidence(evidence: Evidence) -> Confidence:
    if evidence.residuals.misfit() is not None or evidence.seeds_agreeing < AGREEING_SEEDS or evidence.chosen == 0:
        return "no"
    is_doubtful = evidence.hidden_share > MOST_HIDDEN or evidence.seeds_disagreeing > 0
    return "yes" if evidence.rule_confidence == "very" and is_doubtful else evidence.rule_confidence


def _reasons(evidence: Evidence, suggestion: int, confidence: Confidence) -> list[str]:
    misfit, k, curve = evidence.residuals.misfit(), evidence.chosen, evidence.curve
    found = []
    if k == 0:
        found.append("nothing stands out from the noise: even one component gains no more than noise would")
    elif not evidence.residuals.white:
        found.append(f"{misfit}, so components cannot be counted against noise")
        found.append(f"the gain falls most steeply after {suggestion}")
        if k >= curve.largest:
            found.append(f"or there are more than a rank of {evidence.rank} can show: raise rank above {evidence.rank}")
    else:
        found.append(_gains(evidence))
        if misfit is not None:
            found.append(misfit)
    if not evidence.residuals.white:
        return found
    if k and evidence.seeds_agreeing < AGREEING_SEEDS:
        found.append(f"{evidence.seeds_agreeing} of {evidence.seeds} seeds found this model, two are needed")
    if k and evidence.seeds_disagreeing:
        others = f"{evidence.seeds_disagreeing} of {evidence.seeds} seeds fit as well with other components"
        found.append(f"{others}: the number is reliable, the shapes may not be")
    if k >= curve.largest:
        found.append(f"a rank of {evidence.rank} cannot show more components: raise rank above {evidence.rank}")
    if evidence.rank < evidence.rank_asked:
        found.append(f"the tensor is too small for an overfit of more than {evidence.rank} components")
    if confidence != "no":
        share = f"{evidence.hidden_share:.1%} of the tensor's variation"
        found.append(f"components weaker than {evidence.weakest_visible:.3g}, {share}, cannot be detected")
    return found


def _gains(evidence: Evidence) -> str:
    k, nulls = evidence.chosen, evidence.nulls
    last, further = evidence.curve.gain(k - 1), evidence.curve.gain(k)
    count = "1 component stands out" if k == 1 else f"{k} components stand out"
    if k not in nulls:
        return count
    last, further = last / nulls.get(k - 1, nulls[k]).mean, further / nulls[k].mean
    return f"{count}: the last gains {last:.3g} times what noise would, one more {further:.2f} times"


def _flat(factors: Factors | None) -> list[str]:
    """Say whether a component is flat in every mode."""
    if factors is None:
        return []
    cosines = np.prod([A.sum(axis=0) / np.sqrt(len(A)) for A in factors], axis=0)
    flat = cosines > FLAT * weights(factors)
    return ["one component is flat in every mode: a background"] if flat.any() else []
