"""The vote of the criteria: each names a number of components, and the shares of their weights decide.

The weights and thresholds were found on planted tensors with twelve kinds of noise, and are flat: equal weights name
the same number on nearly all of them. benchmarks/choose.md measures the rule on others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

import numpy as np

from sparse_ncp.solvers.studies.evidence.curve import Cliff, Curve
from sparse_ncp.solvers.studies.evidence.prediction import Prediction
from sparse_ncp.solvers.studies.evidence.residuals import HEAVY_TAIL, Residuals

Confidence: TypeAlias = Literal["very", "yes", "no"]

# Cosine of the worst component from which seeds, halves and bootstraps agree, and the quantile of the bootstraps.
SEEDS_AGREE, HALVES_AGREE, BOOTSTRAPS_AGREE, QUANTILE = 0.95, 0.9, 0.95, 0.1
# Core consistency above which a model is consistent, in percent.
CONSISTENT = 70.0
# A number predicts as well as any if its error is at most this fraction above the lowest.
AS_WELL = 0.01
# Numbers with at least this share of the votes are in the range.
IN_RANGE = 0.14
# Shares from which a number is sure and very sure, and the ratio of gains that its cliff must have.
SURE, VERY_SURE, STEEP = 0.6, 0.8, 5.0


@dataclass(frozen=True)
class Criteria:
    """The number of components by each criterion alone; None for one that does not apply or was not evaluated."""

    gain: int | None  # the least loss plus 0.95 u per component; 0 if nothing stands out from the noise
    cliff: int | None  # after which the gains fall most steeply
    agreement: int | None  # the largest at which all seeds find the same
    prediction: int | None = None  # which predicts left-out entries and fibres as well as any
    cold_prediction: int | None = None  # the same of models that never saw these entries
    halves: int | None = None  # the largest at which halves of the samples give the same
    bootstrap: int | None = None  # the largest at which resampled samples give the same
    core: int | None = None  # the largest with a consistent core


WEIGHTS: Mapping[str, float] = {
    "gain": 1.5,
    "cliff": 2.0,
    "agreement": 1.0,
    "prediction": 1.0,
    "cold_prediction": 1.0,
    "halves": 0.5,
    "bootstrap": 0.5,
    "core": 0.25,
}


@dataclass(frozen=True)
class Ballot:
    """The votes under one assumption on the noise, with what qualifies them."""

    criteria: Criteria
    cliff: Cliff
    residuals: Residuals  # of the model that `gain` names
    largest: int  # the largest number that can be named

    def voting(self) -> dict[str, int]:
        """Return the number that each criterion with a vote names.

        The gain has one only where the residuals are those of the assumed noise, and it is not the largest number.
        """
        named = {field.name: getattr(self.criteria, field.name) for field in fields(Criteria)}
        is_noise = self.residuals.white and self.residuals.kurtosis < HEAVY_TAIL
        gain = named["gain"]
        if not is_noise or gain is None or not 0 < gain < self.largest:
            named["gain"] = None
        return {name: k for name, k in named.items() if k is not None}

    def shares(self) -> dict[int, float]:
        """Return the share of the votes of every number that has any."""
        named = self.voting()
        total = sum(WEIGHTS[name] for name in named)
        found: dict[int, float] = {}
        for name, k in named.items():
            found[k] = found.get(k, 0.0) + WEIGHTS[name] / total
        return found


@dataclass(frozen=True)
class Verdict:
    """The outcome of a vote."""

    suggestion: int
    share: float
    range: tuple[int, int]
    confidence: Confidence


def decide(ballots: Sequence[Ballot]) -> Verdict:
    """Return the number with the largest mean share, the smaller of two, and how sure it is."""
    shares: dict[int, float] = {}
    for ballot in ballots:
        for k, share in ballot.shares().items():
            shares[k] = shares.get(k, 0.0) + share / len(ballots)
    named = [k for k in sorted(shares) if k <= max(ballot.largest for ballot in ballots)]
    suggestion = max(named, key=lambda k: shares[k], default=1)
    share = shares.get(suggestion, 0.0)
    near = [suggestion, *(k for k in shares if shares[k] >= IN_RANGE)]
    is_steep = any(ballot.cliff.components == suggestion and ballot.cliff.ratio >= STEEP for ballot in ballots)
    gains = [ballot.voting()["gain"] for ballot in ballots if "gain" in ballot.voting()]
    levels: list[Confidence] = ["no", "yes", "very"]
    level = (share >= SURE) + (share >= VERY_SURE) if is_steep else 0
    if gains and min(gains) > suggestion:  # where the residuals are those of noise, more stands out from it
        level = max(0, level - 1)
    return Verdict(suggestion, share, (min(near), max(near)), levels[level])


def criteria(
    curve: Curve,
    largest: int,
    agreements: Mapping[int, float],
    predictions: Sequence[Prediction],
    halves: Sequence[Mapping[int, float]],
    bootstraps: Sequence[Mapping[int, Sequence[float]]],
    cores: Mapping[int, float | None],
    seeds: int,
) -> Criteria:
    """Return the number that each criterion names, at most `largest`."""
    numbers = range(1, largest + 1)
    disagreeing = next((k for k in numbers if agreements[k] <= SEEDS_AGREE), largest + 1)
    half = {k: float(np.median([found[k] for found in halves])) for k in numbers} if halves else {}
    resampled = {
        k: float(np.quantile([found[k] for found in bootstraps], QUANTILE, axis=0).min()) for k in numbers
    } if bootstraps else {}  # fmt: skip
    cold = [smallest_as_good(prediction.cold) for prediction in predictions if prediction.cold]
    return Criteria(
        gain=curve.best(),
        cliff=curve.cliff().components,
        agreement=max(1, disagreeing - 1) if seeds > 1 else None,
        prediction=min((smallest_as_good(prediction.better) for prediction in predictions), default=None),
        cold_prediction=min(cold, default=None),
        halves=_last_above(half, HALVES_AGREE),
        bootstrap=_last_above(resampled, BOOTSTRAPS_AGREE),
        core=_last_above({k: core for k, core in cores.items() if core is not None and k <= largest}, CONSISTENT),
    )


def merged(ballots: Sequence[Criteria]) -> Criteria:
    """Return the criteria of the first view, and of the next ones where it has none."""
    found = {
        field.name: next((value for one in ballots if (value := getattr(one, field.name)) is not None), None)
        for field in fields(Criteria)
    }
    return Criteria(**found)


def smallest_as_good(errors: Mapping[int, float]) -> int:
    """Return the smallest number whose error is within one percent of the lowest."""
    lowest = min(errors.values())
    return min(k for k, error in errors.items() if error <= (1 + AS_WELL) * lowest)


def _last_above(values: Mapping[int, float], threshold: float) -> int | None:
    """Return the largest number with a value above the threshold, or 1; None without values."""
    if not values:
        return None
    return max((k for k, value in values.items() if value > threshold), default=1)
