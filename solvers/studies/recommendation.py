"""Recommendation of a comparison: a rank, a weight and a method, with the evidence and what was not tried."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

import numpy as np

from sparse_ncp.solvers.studies.tables import Row
from sparse_ncp.solvers.studies.validation import HoldoutOutcome, SplitHalfOutcome, Validated

# Factor match from which repeated runs count as having found the same components.
SAME_COMPONENTS = 0.95
# Core consistency below which a rank fails the check, in percent.
LOW_CORE_CONSISTENCY = 50.0
# Relative increase of the relative error that a penalty may cause and still count as free.
FREE_INCREASE = 0.01
# Relative difference of objectives that count as the same.
SAME_OBJECTIVE = 1e-3


@dataclass(frozen=True)
class RankEvidence:
    """Results of the checks of one rank in a comparison; None for a check that was not made."""

    rank: int
    core_consistency: float | None = None
    split_half: SplitHalfOutcome | None = None
    holdout: HoldoutOutcome | None = None


@dataclass(frozen=True)
class Recommendation:
    """The rank, weight and method that a comparison recommends, in words and with its evidence.

    Attributes
    ----------
    rank, method, beta, sparsity
        The recommended cell of the grid; one of the last two is None.
    best
        Repeat or job of that cell with the lowest objective.
    confirmed
        Whether every check agrees on the rank, a validation was among the checks, and a higher rank was tried.
    title
        The recommendation in a few words.
    sentences
        The evidence, and what was not tried. The first sentence explains the rank.
    """

    rank: int
    method: str
    beta: float | None
    sparsity: float | None
    best: int | str | None
    confirmed: bool
    title: str
    sentences: tuple[str, ...]


def rank_evidence(
    ranks: Sequence[int], validated: Validated, core_consistency: Mapping[int, float | None] | None = None
) -> list[RankEvidence]:
    """Return the results of the checks of each rank.

    Parameters
    ----------
    ranks
        The ranks of a comparison.
    validated
        The outcomes of its validations.
    core_consistency
        The core consistency of the best run of each rank, where it is known.
    """
    halves = {outcome.components: outcome for outcome in validated.split_half}
    holdout = {outcome.components: outcome for outcome in validated.holdout}
    core = core_consistency or {}
    return [RankEvidence(rank, core.get(rank), halves.get(rank), holdout.get(rank)) for rank in ranks]


def recommend(rows: Sequence[Row], evidence: Sequence[RankEvidence] = (), mode: int = 1) -> Recommendation | None:
    """Recommend a rank, a weight and a method from the table of a comparison.

    The rank is the largest that passes every check, and no larger than the error on held-out entries justifies. The
    weight is the largest at that rank that loses no component and raises the relative error by at most 1 %. The method
    is the fastest of those that reach the same objective.

    Parameters
    ----------
    rows
        The rows of the table; those without a run that succeeded are ignored.
    evidence
        The checks of each rank, if any were made.
    mode
        The mode, counted from 1, that the table's sparsity refers to.

    Returns
    -------
    Recommendation or None
        None if no run has succeeded.

    Examples
    --------
    >>> from sparse_ncp import synthetic
    >>> from sparse_ncp.solvers.studies import ComparisonSettings, compare, recommend, table
    >>> made = synthetic.planted((20, 10, 8), rank=2)
    >>> *_, last = compare(made.tensor, ComparisonSettings(ranks=[2], methods=["hals"], repeats=2))
    >>> recommend(table(last.runs)).title
    'Rank 2 – not sure'
    """
    ended = [row for row in rows if row.relative_error is not None and math.isfinite(row.relative_error.mean)]
    if not ended:
        return None
    known = {one.rank: one for one in evidence}
    candidates = [
        _Candidate.of([row for row in ended if row.rank == rank], known.get(rank, RankEvidence(rank)))
        for rank in sorted({row.rank for row in ended})
    ]
    chosen, confirmed, sentences = _recommend_rank(candidates)
    of_rank = [row for row in ended if row.rank == chosen.rank]
    same_weight, about_weight = _recommend_weight(of_rank, mode)
    row, about_method = _recommend_method(same_weight)
    name = f"Rank {row.rank}, {_weight_name(row)}" if about_weight else f"Rank {row.rank}"
    return Recommendation(
        rank=row.rank,
        method=row.method,
        beta=row.beta,
        sparsity=row.requested_sparsity,
        best=row.best,
        confirmed=confirmed,
        title=f"{name} – {'all checks agree' if confirmed else 'not sure'}",
        sentences=(*sentences, *about_weight, *about_method),
    )


@dataclass(frozen=True)
class _Check:
    """One check of a rank, with its outcome in words."""

    passed: bool
    words: str


@dataclass(frozen=True)
class _Candidate:
    """A rank with its checks, by its best row without a penalty or with the smallest one."""

    rank: int
    error: float
    checks: tuple[_Check, ...]
    split: bool  # whether halves of the data were compared
    held_out: tuple[float, ...]  # the relative error on held-out entries, for each fold

    @classmethod
    def of(cls, rows: Sequence[Row], evidence: RankEvidence) -> "_Candidate":
        lightest = min(row.weight for row in rows)
        base = _best_of([row for row in rows if row.weight == lightest])
        checks, core = [], evidence.core_consistency
        if evidence.split_half is not None:
            same, lowest = evidence.split_half.passed, min(evidence.split_half.congruence)
            words = f"split halves of the data give {'the same' if same else 'different'} components"
            checks.append(_Check(same, f"{words} (lowest congruence {lowest:.3g})"))
        if core is not None and core >= LOW_CORE_CONSISTENCY:
            checks.append(_Check(True, f"the core consistency is {core:.3g} %"))
        elif core is not None:
            checks.append(_Check(False, f"the core consistency is low ({core:.3g} %)"))
        if base.factor_match is not None:
            same = base.factor_match.mean >= SAME_COMPONENTS
            words = f"repeated runs find {'the same' if same else 'different'} components"
            checks.append(_Check(same, f"{words} (factor match {base.factor_match.mean:.3g})"))
        return cls(
            rank=evidence.rank,
            error=_error(base),
            checks=tuple(checks),
            split=evidence.split_half is not None,
            held_out=() if evidence.holdout is None else evidence.holdout.relative_error,
        )

    @property
    def passed(self) -> bool:
        """Whether there were checks, and all of them passed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def outcome(self, passed: bool | None = None) -> str:
        """Return the checks in words; with `passed`, only those that passed or only those that failed."""
        return "; ".join(check.words for check in self.checks if passed is None or check.passed == passed)


def _recommend_rank(candidates: Sequence[_Candidate]) -> tuple[_Candidate, bool, list[str]]:
    """Return the recommended rank, whether it is confirmed, and the reasons."""
    if len(candidates) == 1:
        (only,) = candidates
        found = only.outcome() or "nothing was checked"
        remedy = "Compare several ranks to find the number of components."
        return only, False, [f"Only rank {only.rank} was tried: {found}. {remedy}"]
    enough = _smallest_predicting(candidates)
    allowed = [one for one in candidates if enough is None or one.rank <= enough.rank]
    passing = [one for one in allowed if one.passed]
    if passing:
        chosen = passing[-1]
    elif enough is not None:
        chosen = enough
    else:  # the rank after which the relative error falls least
        errors = [max(one.error, np.finfo(float).tiny) for one in allowed]
        falls = [math.log(error / following) for error, following in pairwise(errors)]
        chosen = allowed[falls.index(min(falls))]
    following = next((one for one in candidates if one.rank > chosen.rank), None)
    validated = enough is not None or chosen.split
    # The largest rank that was tried is no answer to "how many": the next one could pass as well.
    confirmed = bool(passing) and validated and following is not None and (enough is None or enough is chosen)
    return chosen, confirmed, [*_rank_sentences(candidates, chosen, enough, following, validated, bool(passing))]


def _rank_sentences(
    candidates: Sequence[_Candidate],
    chosen: _Candidate,
    enough: _Candidate | None,
    following: _Candidate | None,
    validated: bool,
    passing: bool,
) -> Iterator[str]:
    predicts = "it predicts held-out entries as well as any rank"
    reasons = [chosen.outcome(), predicts if enough is chosen else ""]
    found = "; ".join(filter(None, reasons)) or "beyond it the relative error falls least"
    yield f"Rank {chosen.rank}: {found}." if passing else f"No rank passes every check. Rank {chosen.rank}: {found}."
    if following is not None and following.outcome(passed=False):
        yield f"Rank {following.rank}: {following.outcome(passed=False)}."
    if enough is not None:
        errors = [f"{fmean(one.held_out):.3g} with rank {one.rank}" for one in candidates if one.held_out]
        yield f"Relative error on held-out entries: {', '.join(errors)}."
        if enough.rank > chosen.rank:
            yield f"Rank {enough.rank} predicts them better: rank {chosen.rank} misses some structure."
    yield f"Relative error: {', '.join(f'{one.error:.3g} with rank {one.rank}' for one in candidates)}."
    if following is None:
        yield "Higher ranks were not tried."
    if not validated:
        yield "Neither split halves nor held-out entries were checked: request a validation to confirm the rank."


def _smallest_predicting(candidates: Sequence[_Candidate]) -> _Candidate | None:
    """Return the smallest rank whose error on held-out entries is within one standard error of the lowest."""
    held = [one for one in candidates if one.held_out]
    if len(held) < 2:
        return None
    best = min(held, key=lambda one: fmean(one.held_out)).held_out
    error = stdev(best) / math.sqrt(len(best)) if len(best) > 1 else 0.0
    return next(one for one in held if fmean(one.held_out) <= fmean(best) + error)


def _recommend_weight(rows: Sequence[Row], mode: int) -> tuple[list[Row], list[str]]:
    """Return the rows with the largest weight that costs neither fit nor components, and the reasons."""
    weights_tried = sorted({row.weight for row in rows})
    by_weight = [[row for row in rows if row.weight == w] for w in weights_tried]
    if len(by_weight) == 1:
        return by_weight[0], []
    best = [_best_of(of_weight) for of_weight in by_weight]
    base = best[0]
    deviation = base.relative_error.deviation if base.relative_error is not None else 0.0
    highest = _error(base) * (1 + FREE_INCREASE) + (deviation if math.isfinite(deviation) else 0.0)

    def is_free(row: Row) -> bool:
        if row.components is None or base.components is None:
            return _error(row) <= highest
        return _error(row) <= highest and row.components.mean > base.components.mean - 0.5

    def cost(row: Row) -> str:
        parts = [f"relative error {_error(row):.3g}"]
        if row.components is not None:
            parts.append(f"{row.components.mean:.3g} components")
        if row.sparsity is not None:
            parts.append(f"{100 * row.sparsity.mean:.0f} % zeros in mode {mode}")
        return ", ".join(parts)

    place = max((place for place, row in enumerate(best) if is_free(row)), default=0)
    row = best[place]
    name = _weight_name(row).capitalize() if row.beta is None else _weight_name(row)
    if place == 0:
        reasons = [f"{name} is the smallest weight tried: {cost(row)}."]
    else:
        reasons = [
            f"{name} is the largest weight without a cost: {cost(row)}; with {_weight_name(base)}, {cost(base)}."
        ]
    if place + 1 < len(by_weight):
        heavier = best[place + 1]
        reasons.append(f"With {_weight_name(heavier)} the fit or the components suffer: {cost(heavier)}.")
    else:
        reasons.append("Larger weights were not tried.")
    return by_weight[place], reasons


def _recommend_method(rows: Sequence[Row]) -> tuple[Row, list[str]]:
    """Return the fastest of the rows that reach the lowest objective, and the reason."""
    others_penalty = {row.penalty for row in rows} - {_best_of(rows).penalty}
    left_out = [row.method for row in rows if row.penalty in others_penalty]
    rows = sorted((row for row in rows if row.method not in left_out), key=_objective)
    apart = [f"Left out of this, since their penalty is another one: {', '.join(left_out)}."] if left_out else []
    if len(rows) == 1:
        return rows[0], apart
    lowest = _objective(rows[0])
    same = [row for row in rows if _objective(row) <= lowest + SAME_OBJECTIVE * abs(lowest)]
    fastest = min(same, key=lambda row: row.seconds.mean if row.seconds is not None else math.inf)
    first, *others = [
        f"{row.method} {'?' if row.seconds is None else format(row.seconds.mean, '.3g')} s, {_objective(row):.4g}"
        for row in (fastest, *(row for row in rows if row is not fastest))
    ]
    return fastest, [f"Fastest method to the lowest objective (time, objective): {first}; {'; '.join(others)}.", *apart]


def _best_of(rows: Sequence[Row]) -> Row:
    """Return the row with the lowest objective, or with the lowest relative error if the objectives differ in kind."""
    return min(rows, key=_objective if len({row.penalty for row in rows}) == 1 else _error)


def _weight_name(row: Row) -> str:
    return f"β {row.beta:g}" if row.beta is not None else f"sparsity {row.requested_sparsity:g}"


def _objective(row: Row) -> float:
    return math.inf if row.objective is None else row.objective.mean


def _error(row: Row) -> float:
    return math.inf if row.relative_error is None else row.relative_error.mean
