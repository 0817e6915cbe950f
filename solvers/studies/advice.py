"""Advice: how many components, how sure, and why. Never a bare number."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import WithJsonSchema

from sparse_ncp.solvers.metrics import weights
from sparse_ncp.solvers.studies.fitting.fits import Factors
from sparse_ncp.solvers.studies.rule import AGREEING_SEEDS, Curve, Null, Residuals, Sure

# A component whose columns are this close to constant, as the product of cosines over the modes, is a background.
FLAT = 0.85
# Nobody is very sure where noise may hide a component of more than this share of the tensor's variation.
MOST_HIDDEN = 0.025


# A list of two in the schema: few generators of clients know tuples.
Between: TypeAlias = Annotated[
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
    """What a study says. `components` is None where what is left after the fit is not noise: nothing can be counted."""

    components: int | None
    suggestion: int
    between: Between
    sure: Sure
    white: bool
    weakest_visible: float  # norm of the weakest component that would be seen, in units of the tensor
    criteria: Criteria
    sparsity: float | None  # with which the recommended setting leaves just these components
    beta: float | None
    reason: str


@dataclass(frozen=True)
class Evidence:
    """What the advice rests on."""

    curve: Curve
    chosen: int
    certainty: Sure
    nulls: Mapping[int, Null]  # what one component more than these gains on simulated noise
    residuals: Residuals
    criteria: Criteria
    seeds: int
    finders: int  # seeds that found the chosen model by themselves
    rivals: int  # seeds that found another with as many components, and nearly as low a loss
    weakest_visible: float
    variation: float  # norm of the tensor less its mean: a background may be any number of times larger
    rank_asked: int
    rank: int

    @property
    def hidden_share(self) -> float:
        """The norm of what may be hidden in the noise, as a share of the tensor's variation."""
        return self.weakest_visible / self.variation if self.variation > 0 else math.inf


def advise(evidence: Evidence, factors: Factors | None) -> Advice:
    """The advice without a sparsity, which takes runs of its own to find. `factors` are those of the suggestion."""
    seen = evidence.residuals
    suggestion = evidence.chosen if seen.white and evidence.chosen else max(1, evidence.criteria.cliff)
    sure = _certainty(evidence)
    named = (suggestion, evidence.criteria.gain, evidence.criteria.cliff, evidence.criteria.agreement)
    return Advice(
        components=evidence.chosen if seen.white and evidence.chosen else None,
        suggestion=suggestion,
        between=(max(1, min(named)), max(named)),
        sure=sure,
        white=seen.white,
        weakest_visible=evidence.weakest_visible,
        criteria=evidence.criteria,
        sparsity=None,
        beta=None,
        reason="; ".join([*_reasons(evidence, suggestion, sure), *_flat(factors)]),
    )


def _certainty(evidence: Evidence) -> Sure:
    if evidence.residuals.misfit() is not None or evidence.finders < AGREEING_SEEDS or evidence.chosen == 0:
        return "no"
    is_doubtful = evidence.hidden_share > MOST_HIDDEN or evidence.rivals > 0
    return "yes" if evidence.certainty == "very" and is_doubtful else evidence.certainty


def _reasons(evidence: Evidence, suggestion: int, sure: Sure) -> list[str]:
    misfit, k, curve = evidence.residuals.misfit(), evidence.chosen, evidence.curve
    found = []
    if k == 0:
        found.append("nothing stands out of the noise: even one component gains no more than noise would")
    elif not evidence.residuals.white:
        found.append(f"{misfit}, so components cannot be counted against noise")
        found.append(f"{suggestion} is where the gains fall most steeply")
        if k >= curve.largest:
            found.append(f"or there are more components than were on offer: raise rank above {evidence.rank}")
    else:
        found.append(_gains(evidence))
        if misfit is not None:
            found.append(misfit)
    if not evidence.residuals.white:
        return found
    if k and evidence.finders < AGREEING_SEEDS:
        found.append(f"{evidence.finders} of {evidence.seeds} seeds found this model by themselves, two are needed")
    if k and evidence.rivals:
        others = f"{evidence.rivals} of {evidence.seeds} seeds fit as well with other components"
        found.append(f"{others}: their number stands, their shapes may not")
    if k >= curve.largest:
        found.append(f"it is the largest number on offer: raise rank above {evidence.rank}")
    if evidence.rank < evidence.rank_asked:
        found.append(f"the tensor is too small for an overfit of more than {evidence.rank} components")
    if sure != "no":
        share = f"{evidence.hidden_share:.1%} of the tensor's variation"
        found.append(f"components weaker than {evidence.weakest_visible:.3g}, {share}, cannot be seen")
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
    """Which components are the same everywhere."""
    if factors is None:
        return []
    cosines = np.prod([A.sum(axis=0) / np.sqrt(len(A)) for A in factors], axis=0)
    flat = cosines > FLAT * weights(factors)
    return ["one of them is flat, a background"] if flat.any() else []
