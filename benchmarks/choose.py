"""How often `choose` finds the planted number of components, and whether its confidence is justified.

    python -m benchmarks.choose [--first 3300] [--count 204] [--seconds 180] [--done choose.jsonl …] [--real DATA]

Every tensor has a number, and is made from it alone. What is done is kept in a file, one line per tensor, and not done
again; several processes may each have a file, and one reads them all. No constant of the rule was chosen by the tensors
that are reported: numbers below 3000 are there to look at while the rule is changed. With --real, six real sets are
studied too: DATA is a folder with the files that `benchmarks/real_sets.py` names.
"""

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.planted import KINDS, Planted, planted
from benchmarks.real_sets import real_sets
from benchmarks.report import machine, markdown
from sparse_ncp.solvers import Settings, metrics, solve
from sparse_ncp.solvers.studies import Choice, ChoiceSettings, ChoiceState, choose
from sparse_ncp.solvers.studies.evidence.vote import Ballot
from sparse_ncp.solvers.studies.evidence.weighing import Weighing
from sparse_ncp.solvers.studies.fitting.inputs import prepare
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.threads import Threads

OUTPUT = Path(__file__).with_name("choose.md")
# Components are the same above this factor match, and flat ones, that clipping makes as well, are not counted.
SAME, FLAT = 0.95, 0.85
RULES = ("former", "halves", "core", "bic")
ABOUT = """2 to 7 components (one or none in two of the
kinds), at 30, 20 and 10 dB, weights spanning 1 to 10, in units from 1e-6 to 1e5, with the default settings. Factors are
scores in the first mode, and decays, resonances, steps or sparse loadings in the others; `benchmarks/planted.py` makes
them. The rule was fixed before any of these tensors was looked at. The last change to it was the fraction of the
steepest fall from which a later one counts as the cliff, from 0.6 to 0.45: on 90 tensors of numbers below 3000, of
which 76 are possible, every fraction from 0.3 to 0.8 is right on 73 to 75, and the kinetic set, which was looked at as
well, has a later fall of half the steepest one, at the number that is known. With 0.6, it was right on 165 of 172
possible tensors of numbers 3000 to 3271, and on 141 of 143 sure ones.

*Possible*: a fit that starts at the truth ends there. *Right*: the suggestion is the planted number; for noise alone,
that no number is sure. *Model too*: and the factor match is above 0.95. *Very sure, right*: of how many that were
called very sure the number was right, possible or not; *sure* has those as well. The four columns before the last count
the possible tensors on which another rule names the planted number: the former one of `choose` (the gain over noise of
a single level, or the cliff where residuals are not white), split halves, core consistency above 70 %, and BIC. Seconds
are of one processor, medians."""
ABOUT_REAL = """The criteria are, in order: gain, cliff, agreement, prediction, cold prediction, halves, bootstrap and
core, in the view in which the noise has a level for every index. What is known: the amino acids are mixtures of three,
Dorrit's of four, and the kinetic set is said to have four or five."""


@dataclass(frozen=True)
class Outcome:
    """One tensor: how it was planted, and the advice for it."""

    number: int
    kind: str
    planted: int
    possible: bool  # a start at the truth recovers it
    components: int | None
    suggestion: int
    confidence: str
    low: int
    high: int
    share: float
    same: bool  # the suggested model has the planted components
    rules: dict[str, int | None]  # the number by other rules
    taken_for: str
    reason: str
    seconds: float  # of the processor
    ballots: list[dict[str, Any]]

    @property
    def right(self) -> bool:
        return self.suggestion == self.planted if self.planted else self.confidence == "no"

    @property
    def sure(self) -> bool:
        return self.confidence != "no"


def is_same(found: Sequence[Float64], true: Sequence[Float64]) -> bool:
    """Return whether the planted components were found, in number and shape; flat ones do not count."""
    ours, theirs = _structured(found), _structured(true)
    if ours[0].shape[1] != theirs[0].shape[1]:
        return False
    return theirs[0].shape[1] == 0 or metrics.factor_match_score(ours, theirs) > SAME


def is_possible(made: Planted) -> bool:
    """Return whether a fit that starts at the true factors stays there."""
    if not made.factors[0].shape[1]:
        return False
    scaled = made.tensor / math.sqrt(float(np.nanmean(np.square(made.tensor))))
    weights = metrics.weights(made.factors) ** (1 / len(made.factors))
    balanced = [A / np.linalg.norm(A, axis=0) * weights for A in made.factors]
    settings = Settings.recommended(rank=made.factors[0].shape[1], missing="nan", negative="keep")
    found = solve(scaled, settings, initial=balanced, threads=1).factors
    return is_same([A.astype(np.float64) for A in found], made.factors)


def _structured(factors: Sequence[Float64]) -> list[Float64]:
    """Remove the components that are constant along every mode."""
    cosines = np.prod([A.sum(axis=0) / np.sqrt(len(A)) for A in factors], axis=0)
    kept = cosines < FLAT * metrics.weights(factors)
    return [np.asarray(A[:, kept]) for A in factors]


def study(tensor: Float64) -> tuple[Choice, tuple[Ballot, ...], dict[str, int | None], float]:
    """Run `choose`; return its outcome, the ballots of both views, the numbers by other rules, and the seconds."""
    settings = ChoiceSettings(missing="nan", negative="keep")
    started = time.process_time()
    last: ChoiceState | None = None
    for last in choose(tensor, settings, threads=1):  # noqa: B007
        pass
    seconds = time.process_time() - started
    if last is None or last.outcome is None:
        raise RuntimeError("the study ended without an outcome")
    with Threads(1) as pool:
        ballots = Weighing(prepare(tensor, settings, None, pool).data, last).ballots
    level = ballots[-1]
    former = level.criteria.gain if level.residuals.white and level.criteria.gain else level.criteria.cliff
    rules = {
        "former": former,
        "halves": level.criteria.halves,
        "core": level.criteria.core,
        "bic": _bic(last.outcome, tensor),
    }
    return last.outcome, ballots, rules, seconds


def _bic(choice: Choice, tensor: Float64) -> int:
    count = int(np.isfinite(tensor).sum())
    each = sum(tensor.shape) - tensor.ndim + 1

    def criterion(components: int, error: float) -> float:
        return count * math.log(max(error, 1e-9) ** 2) + components * each * math.log(count)

    return min(choice.points, key=lambda point: criterion(point.components, point.relative_error)).components


def measure(number: int) -> Outcome:
    made = planted(number)
    choice, ballots, rules, seconds = study(made.tensor)
    advice = choice.advice
    return Outcome(
        number=number,
        kind=made.kind,
        planted=made.factors[0].shape[1],
        possible=is_possible(made),
        components=advice.components,
        suggestion=advice.suggestion,
        confidence=advice.confidence,
        low=advice.range[0],
        high=advice.range[1],
        share=advice.share or 0.0,
        same=bool(made.factors[0].shape[1]) and is_same(choice.factors, made.factors),
        rules=rules,
        taken_for=choice.noise,
        reason=advice.reason,
        seconds=seconds,
        ballots=[asdict(ballot) for ballot in ballots],
    )


def measure_real(folder: Path, done: Mapping[str, list[str]], kept: Path) -> list[list[str]]:
    """Study the real sets that are not done; return a row of the table for each, and keep it."""
    rows = []
    for name, tensor, known in real_sets(folder):
        if name in done:
            rows.append(done[name])
            continue
        choice, ballots, rules, seconds = study(tensor)
        advice, named = choice.advice, vars(ballots[0].criteria).values()
        rows.append([
            name, "×".join(map(str, tensor.shape)), " or ".join(map(str, known)) or "–", str(advice.suggestion),
            advice.confidence, f"{advice.share:.2f}", f"{advice.range[0]} to {advice.range[1]}",
            " ".join("–" if value is None else str(value) for value in named),
            *(str(rules[rule] or "–") for rule in RULES), f"{seconds:.1f}",
        ])  # fmt: skip
        with kept.open("a") as lines:
            lines.write(json.dumps({"set": name, "row": rows[-1]}) + "\n")
    return rows


def report(outcomes: Sequence[Outcome], wanted: range, real: Sequence[Sequence[str]]) -> str:
    rows = [_row(kind, [outcome for outcome in outcomes if outcome.kind == kind]) for kind in KINDS]
    rows.append(_row("all", outcomes))
    titles = [
        "kind of noise", "tensors", "possible", "right of these", "model too", "very sure, right", "sure, right",
        "in the range", "former rule", "halves", "core", "BIC", "seconds",
    ]  # fmt: skip
    wrong = [outcome for outcome in outcomes if not outcome.right and (outcome.possible or outcome.sure)]
    missed = [
        [
            str(o.number), o.kind, str(o.planted), str(o.suggestion), o.confidence, f"{o.low} to {o.high}",
            "yes" if o.possible else "no",
        ]
        for o in wrong
    ]  # fmt: skip
    left = len(wanted) - len(outcomes)
    unfinished = f"**Unfinished: {left} of {len(wanted)} tensors have not been measured.**\n\n" if left else ""
    real_titles = [
        "set", "shape", "known", "suggested", "sure", "share", "range", "criteria", "former rule", "halves", "core",
        "BIC", "seconds",
    ]  # fmt: skip
    asked = f"--first {wanted.start} --count {len(wanted)}{' --real DATA' if real else ''}"
    command = f"By `python -m benchmarks.choose {asked}` on {machine()}."
    numbers = f"{len(outcomes)} tensors, of numbers {wanted.start} to {wanted.stop - 1}, with"
    parts = [
        "# Counting planted components",
        command + ("\n\n" + unfinished.strip() if unfinished else ""),
        f"{numbers} {ABOUT}",
        markdown(titles, rows),
        "## What was missed",
        "Every tensor whose number was wrong though `choose` was sure, or though a start at the truth succeeds.",
        markdown(["number", "noise", "planted", "suggested", "sure", "range", "possible"], missed),
    ]
    if real:
        parts += ["## Real sets", ABOUT_REAL, markdown(real_titles, real)]
    return "\n\n".join(parts) + "\n"


def _row(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    possible = [outcome for outcome in outcomes if outcome.possible]
    very, sure = [o for o in outcomes if o.confidence == "very"], [o for o in outcomes if o.sure]
    others = [sum(o.rules[rule] == o.planted for o in possible) for rule in RULES]
    return [
        name,
        str(len(outcomes)),
        str(len(possible)),
        _share([o.right for o in possible]),
        _share([o.right and o.same for o in possible]),
        _share([o.right for o in very]),
        _share([o.right for o in sure]),
        _share([o.low <= o.planted <= o.high for o in possible]),
        *map(str, others),
        f"{np.median([o.seconds for o in outcomes]):.1f}" if outcomes else "–",
    ]


def _share(right: Sequence[bool]) -> str:
    return f"{sum(right)} of {len(right)} ({np.mean(right):.0%})" if right else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=204, help="how many tensors")
    parser.add_argument("--first", type=int, default=3300, help="the number of the first")
    parser.add_argument("--real", type=Path, help="folder with the files of real sets")
    parser.add_argument(
        "--done",
        type=Path,
        nargs="+",
        default=[Path("choose.jsonl")],
        help="what is done already; what is done now is added to the first",
    )
    parser.add_argument("--so-far", action="store_true", help="measure no planted tensor, report what is done")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further planted tensor after these")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args()
    lines = [json.loads(line) for file in asked.done if file.exists() for line in file.read_text().splitlines()]
    done = {line["number"]: Outcome(**line) for line in lines if "number" in line}
    wanted = range(asked.first, asked.first + asked.count)
    ends = time.monotonic() + asked.seconds
    for number in tqdm([number for number in wanted if number not in done and not asked.so_far]):
        if time.monotonic() > ends:
            break
        done[number] = measure(number)
        with asked.done[0].open("a") as kept:
            kept.write(json.dumps(asdict(done[number])) + "\n")
    rows = {line["set"]: line["row"] for line in lines if "set" in line}
    real = measure_real(asked.real, rows, asked.done[0]) if asked.real else []
    text = report([done[number] for number in wanted if number in done], wanted, real)
    print(text)
    asked.output.write_text(text)


if __name__ == "__main__":
    main()
