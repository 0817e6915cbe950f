"""How often `choose` finds the planted number of components, and whether its confidence is justified.

    python -m benchmarks.choose [--count 120] [--first 3000] [--done choose.jsonl …] [--output benchmarks/choose.md]

Every tensor has a number, and is made from it alone. What is done is kept in a file, one line per tensor, and not done
again; several processes may each have a file, and one reads them all. No constant of the rule was chosen by the tensors
that are reported: numbers below 3000 are there to look at while the rule is changed.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.report import machine, markdown
from sparse_ncp.solvers import Settings, metrics, solve
from sparse_ncp.solvers.studies import Choice, ChoiceSettings, choose
from sparse_ncp.solvers.studies.fitting.fits import model
from sparse_ncp.solvers.tensor.products import Float64

OUTPUT = Path(__file__).with_name("choose.md")
SHAPES = ((26, 22, 18), (48, 24, 10), (16, 16, 40), (34, 30, 26), (15, 12, 10, 9), (24, 10, 8, 12))
RATIOS_DB = (40, 20, 10)
SPANS = (1, 3, 10, 30)
UNITS = (1e-6, 1.0, 1e5)
# Components are the same above this factor match, and flat ones, that clipping makes as well, are not counted.
SAME, FLAT = 0.95, 0.85
# Cosine of two planted components at most, multiplied over the modes.
MOST_ALIKE = 0.8
SEED = 20_000  # far from every seed of the tests


@dataclass(frozen=True)
class Outcome:
    """One tensor: how it was planted, and the advice for it."""

    number: int
    noise: str
    matched: bool
    planted: int
    ratio_db: int
    possible: bool  # a start at the truth recovers it
    components: int | None
    suggestion: int
    sure: str
    white: bool
    exact: bool  # as many as were planted, and the same
    close: bool  # the suggestion's, whether or not it is called a count
    taken_for: str
    reason: str
    seconds: float  # of the processor


def clipped(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    return np.maximum(0.0, exact + level * random.standard_normal(exact.shape))


def gaussian(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add Gaussian noise and an offset, a flat component that keeps all entries away from zero."""
    return np.maximum(0.0, exact + 6 * level + level * random.standard_normal(exact.shape))


def counts(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Draw as many counts as give noise of this level."""
    unit = level**2 * exact.size / float(exact.sum())
    return np.asarray(unit * random.poisson(exact / unit), np.float64)


def correlated(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add noise that is autoregressive along the first mode, with coefficient 0.5."""
    noise = random.standard_normal(exact.shape)
    for place in range(1, len(noise)):
        noise[place] = 0.5 * noise[place - 1] + np.sqrt(0.75) * noise[place]
    return np.maximum(0.0, exact + level * noise)


def heavy_tailed(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add noise with Student's t distribution of three degrees of freedom."""
    return np.asarray(np.maximum(0.0, exact + level / np.sqrt(3) * random.standard_t(3, exact.shape)))


def multiplicative(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Multiply by log-normal noise of the same norm."""
    return np.asarray(exact * np.exp(np.log1p(level) * random.standard_normal(exact.shape)))


NOISES: dict[str, Callable[[Float64, float, np.random.Generator], Float64]] = {
    "clipped": clipped,
    "gaussian": gaussian,
    "counts": counts,
    "correlated": correlated,
    "heavy_tailed": heavy_tailed,
    "multiplicative": multiplicative,
}
MATCHED = ("clipped", "gaussian", "counts")


def columns(length: int, rank: int, random: np.random.Generator) -> Float64:
    """Return decays, resonances, steps or sparse loadings: one kind for all columns of a mode."""
    place = np.arange(length)[:, None] / length
    kind = random.integers(4)
    if kind == 0:
        return np.exp(-place * random.uniform(1, 12, rank))
    if kind == 1:
        return 1 / (1 + np.square((place - random.uniform(0, 1, rank)) / random.uniform(0.02, 0.15, rank)))
    if kind == 2:
        starts = random.uniform(0, 0.8, rank)
        return 0.02 + np.asarray((place >= starts) & (place < starts + random.uniform(0.1, 0.5, rank)), np.float64)
    return random.gamma(0.4, size=(length, rank)) + 1e-3


def apart(shape: Sequence[int], rank: int, random: np.random.Generator) -> list[Float64]:
    """Return factors with unit columns and no two components that are nearly equal."""
    while True:
        drawn = [columns(length, rank, random) for length in shape]
        factors = [np.asarray(A / np.linalg.norm(A, axis=0)) for A in drawn]
        cosines = np.prod([A.T @ A for A in factors], axis=0) - np.eye(rank)
        if cosines.max() < MOST_ALIKE:
            return factors


def planted(number: int) -> tuple[Float64, list[Float64], str, int]:
    """Return the tensor with this number, its factors, its noise and its signal-to-noise ratio."""
    random = np.random.default_rng(SEED + number)
    noise = tuple(NOISES)[number % len(NOISES)]
    ratio_db, span = (int(random.choice(values)) for values in (RATIOS_DB, SPANS))
    shape, rank = SHAPES[random.integers(len(SHAPES))], int(random.integers(2, 9))
    factors = apart(shape, rank, random)
    factors[0] = factors[0] * random.permutation(np.geomspace(1, 1 / span, rank))
    exact = model(factors)
    size = float(np.sqrt(np.square(exact).mean()))
    tensor = NOISES[noise](exact / size, 10 ** (-ratio_db / 20), random)
    return tensor * random.choice(UNITS), [factors[0] / size, *factors[1:]], noise, ratio_db


def is_right(found: Sequence[Float64], true: Sequence[Float64]) -> bool:
    """Return whether the planted components were found, in number and shape; flat ones do not count."""
    ours, theirs = _structured(found), _structured(true)
    if ours[0].shape[1] != theirs[0].shape[1]:
        return False
    return theirs[0].shape[1] == 0 or metrics.factor_match_score(ours, theirs) > SAME


def is_possible(tensor: Float64, true: Sequence[Float64]) -> bool:
    """Return whether a fit that starts at the true factors stays there, with or without a flat component."""
    scaled = tensor / float(np.sqrt(np.square(tensor).mean()))
    weights = metrics.weights(true) ** (1 / len(true))
    balanced = [A / np.linalg.norm(A, axis=0) * weights for A in true]
    flat = [np.hstack((A, np.full((len(A), 1), A.mean()))) for A in balanced]
    return any(is_right(_fitted(scaled, start), true) for start in (balanced, flat))


def _fitted(tensor: Float64, start: Sequence[Float64]) -> Sequence[Float64]:
    settings = Settings.recommended(rank=start[0].shape[1])
    return [A.astype(np.float64) for A in solve(tensor, settings, initial=start, threads=1).factors]


def _structured(factors: Sequence[Float64]) -> list[Float64]:
    """Remove the components that are constant along every mode."""
    cosines = np.prod([A.sum(axis=0) / np.sqrt(len(A)) for A in factors], axis=0)
    kept = cosines < FLAT * metrics.weights(factors)
    return [np.asarray(A[:, kept]) for A in factors]


def counted(tensor: Float64) -> Choice:
    """Run `choose` without its search for a sparsity, which does not affect the count."""
    for state in choose(tensor, ChoiceSettings(rank=16), threads=1):
        if state.stage == "sparsity":
            *_, last = choose(tensor, resume=replace(state, stage="validate"), threads=1)
            if last.outcome is not None:
                return last.outcome
    raise RuntimeError("the study ended without an outcome")


def measure(number: int) -> Outcome:
    tensor, true, noise, ratio_db = planted(number)
    started = time.process_time()
    chosen = counted(tensor)
    seconds = time.process_time() - started
    advice, close = chosen.advice, is_right(chosen.factors, true)
    return Outcome(
        number=number,
        noise=noise,
        matched=noise in MATCHED,
        planted=true[0].shape[1],
        ratio_db=ratio_db,
        possible=is_possible(tensor, true),
        components=advice.components,
        suggestion=advice.suggestion,
        sure=advice.confidence,
        white=advice.residuals_white,
        exact=close and advice.components is not None,
        close=close,
        taken_for=chosen.noise,
        reason=advice.reason,
        seconds=seconds,
    )


def report(outcomes: Sequence[Outcome], wanted: range) -> str:
    rows = [_row(noise, [outcome for outcome in outcomes if outcome.noise == noise]) for noise in NOISES]
    for name, matched in (("all that the rule knows", True), ("all that it does not know", False)):
        rows.append(_row(name, [outcome for outcome in outcomes if outcome.matched == matched]))
    titles = [
        "noise",
        "tensors",
        "possible",
        "exact of these",
        "very sure, right",
        "sure, right",
        "not sure",
        "seconds",
    ]
    missed = [
        [
            str(o.number),
            o.noise,
            str(o.ratio_db),
            str(o.planted),
            str(o.suggestion),
            o.sure,
            "yes" if o.possible else "no",
        ]
        for o in outcomes
        if not o.exact and (o.sure != "no" or (o.matched and o.possible))
    ]
    left = len(wanted) - len(outcomes)
    unfinished = f"**Unfinished: {left} of {len(wanted)} tensors have not been measured.**\n\n" if left else ""
    return (
        "# Counting planted components\n\n"
        f"By `python -m benchmarks.choose --first {wanted.start} --count {len(wanted)}` on {machine()}.\n\n{unfinished}"
        f"{len(outcomes)} tensors, of numbers {wanted.start} to {wanted.stop - 1}, with 2 to 8 components,\n"
        "at 40, 20 and 10 dB, weights spanning 1 to 30, in units from 1e-6 to 1e5;\n"
        "an overfit of 16 for all. Factors are decays, resonances, steps\n"
        "or sparse loadings. The rule knows clipped and plain Gaussian noise and counts; it does not know noise that\n"
        "is correlated, heavy-tailed or multiplicative.\n\n"
        "No tensor reported here was looked at before the rule was fixed. Of numbers below 2000, 26 were, and led to\n"
        "one change: *very sure* is withheld where noise may hide a component of more than 2.5 % of what the tensor\n"
        "varies by (first: of its norm, which a background inflates). Numbers 2000 to 2119 were reported once, with\n"
        "47 of 49 exact and 33 of 34 very sure ones right. The 34th led to the other change: *very sure* is withheld\n"
        "where a seed fits as well with other components.\n\n"
        "*Possible*: a fit that starts at the truth ends there. *Exact*: a count was given, it is the planted one,\n"
        "and the factor match is above 0.95. *Very sure, right*: of how many that were called very sure the answer\n"
        "was exact, possible or not; *sure* has those as well. Seconds of one processor, medians, without the search\n"
        f"for a sparsity.\n\n{markdown(titles, rows)}\n\n## What was missed\n\n"
        "Every tensor whose count was wrong though `choose` was sure, or though it knows the noise and a start at the\n"
        "truth succeeds.\n\n"
        + markdown(["number", "noise", "dB", "planted", "suggested", "sure", "possible"], missed)
        + "\n"
    )


def _row(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    possible = [outcome for outcome in outcomes if outcome.possible]
    very, sure = ([o for o in outcomes if o.sure in levels] for levels in (("very",), ("very", "yes")))
    return [
        name.replace("_", "-"),
        str(len(outcomes)),
        str(len(possible)),
        _share(possible),
        _share(very),
        _share(sure),
        str(len(outcomes) - len(sure)),
        f"{np.median([outcome.seconds for outcome in outcomes]):.1f}" if outcomes else "–",
    ]


def _share(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "–"
    exact = sum(outcome.exact for outcome in outcomes)
    return f"{exact} of {len(outcomes)} ({exact / len(outcomes):.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=120, help="how many tensors")
    parser.add_argument("--first", type=int, default=3000, help="the number of the first")
    parser.add_argument(
        "--done",
        type=Path,
        nargs="+",
        default=[Path("choose.jsonl")],
        help="what is done already; what is done now is added to the first",
    )
    parser.add_argument("--so-far", action="store_true", help="measure nothing, report what is done")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args()
    lines = [line for file in asked.done if file.exists() for line in file.read_text().splitlines()]
    done = {outcome.number: outcome for outcome in (Outcome(**json.loads(line)) for line in lines)}
    wanted = range(asked.first, asked.first + asked.count)
    for number in tqdm([number for number in wanted if number not in done and not asked.so_far]):
        done[number] = measure(number)
        with asked.done[0].open("a") as kept:
            kept.write(json.dumps(asdict(done[number])) + "\n")
    text = report([done[number] for number in wanted if number in done], wanted)
    print(text)
    asked.output.write_text(text)


if __name__ == "__main__":
    main()
