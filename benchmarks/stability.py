"""How well replicability separates right components from wrong ones, beside halves and the agreement of seeds.

    python -m benchmarks.stability [--count 45] [--first 1000] [--output benchmarks/stability.md]

Every tensor has a number, and is made from it alone. It is fitted with the planted number of components, with one and
with two more. A component is right if it matches a planted one in all modes that are not samples.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import rankdata
from tqdm import tqdm

from benchmarks.report import machine, markdown
from sparse_ncp.solvers import Settings, assess_stability, solve
from sparse_ncp.solvers.diagnostics.stability import aligned_with
from sparse_ncp.solvers.tensor.products import Float64

OUTPUT = Path(__file__).with_name("stability.md")
SHAPES = ((24, 20, 16), (16, 30, 14), (40, 12, 18), (14, 12, 9, 8))
RATIOS_DB = (20, 10, 5)
# The product of cosines from which a component is a planted one, and of two planted ones at most.
RIGHT, MOST_ALIKE = 0.95, 0.8
SEED = 40_000  # far from every seed of the tests
OTHER_SEEDS = 3
SCORES = ("replicability", "split_half", "agreement")

Noise = Callable[[Float64, float, np.random.Generator], Float64]


def gaussian(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    return np.asarray(exact + level * random.standard_normal(exact.shape))


def clipped(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    return np.maximum(0.0, gaussian(exact, level, random))


def counts(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Draw as many counts as give noise of this level."""
    unit = level**2 * exact.size / float(exact.sum())
    return np.asarray(unit * random.poisson(exact / unit), np.float64)


def multiplicative(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    return np.asarray(exact * np.exp(np.log1p(level) * random.standard_normal(exact.shape)))


def channels(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add noise whose level differs tenfold between the indices of the second mode."""
    levels = np.exp(random.uniform(np.log(0.3), np.log(3), exact.shape[1]))
    spread = levels.reshape([-1 if mode == 1 else 1 for mode in range(exact.ndim)])
    return np.asarray(exact + level * spread * random.standard_normal(exact.shape))


def correlated(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add noise that is autoregressive along the second mode, with coefficient 0.6."""
    noise = np.moveaxis(random.standard_normal(exact.shape), 1, 0).copy()
    for place in range(1, len(noise)):
        noise[place] = 0.6 * noise[place - 1] + 0.8 * noise[place]
    return np.asarray(exact + level * np.moveaxis(noise, 0, 1))


def heavy_tailed(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add noise with Student's t distribution of three degrees of freedom."""
    return np.asarray(exact + level / np.sqrt(3) * random.standard_t(3, exact.shape))


def missing(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add Gaussian noise, and leave out 30 % of the entries."""
    return np.where(random.random(exact.shape) < 0.7, gaussian(exact, level, random), np.nan)


NOISES: Mapping[str, Noise] = {
    "gaussian": gaussian,
    "clipped": clipped,
    "counts": counts,
    "multiplicative": multiplicative,
    "channels": channels,
    "correlated": correlated,
    "heavy-tailed": heavy_tailed,
    "missing": missing,
    "varying profiles": gaussian,  # the second mode's loadings differ from sample to sample
}


@dataclass(frozen=True)
class Component:
    """One component of a fit: whether it is right, and what the three scores say."""

    noise: str
    beyond: int  # components more than were planted
    right: bool
    replicability: float
    split_half: float
    agreement: float


@dataclass(frozen=True)
class Timed:
    """Seconds of a fit, and of its stability."""

    fit: float
    stability: float


def columns(length: int, rank: int, random: np.random.Generator) -> Float64:
    """Return peaks, decays or sparse loadings: one kind for all columns of a mode."""
    place = np.arange(length)[:, None] / length
    kind = random.integers(3)
    if kind == 0:
        return 1 / (1 + np.square((place - random.uniform(0, 1, rank)) / random.uniform(0.03, 0.15, rank)))
    if kind == 1:
        return np.exp(-place * random.uniform(1, 12, rank))
    return random.gamma(0.4, size=(length, rank)) + 1e-3


def planted(number: int) -> tuple[str, Float64, list[Float64]]:
    """Return the kind of noise, the tensor with this number, and its factors."""
    random = np.random.default_rng(SEED + number)
    noise, shape = tuple(NOISES)[number % len(NOISES)], SHAPES[random.integers(len(SHAPES))]
    rank, ratio_db = int(random.integers(2, 6)), int(random.choice(RATIOS_DB))
    while True:
        loadings = [columns(length, rank, random) for length in shape[1:]]
        loadings = [A / np.linalg.norm(A, axis=0) for A in loadings]
        if (np.prod([A.T @ A for A in loadings], axis=0) - np.eye(rank)).max() < MOST_ALIKE:
            break
    samples = random.gamma(1.5, size=(shape[0], rank)) * random.permutation(np.geomspace(1, 0.2, rank))
    letters = "abcd"[: len(shape)]
    terms = [f"{letter}r" for letter in letters]
    varying = loadings[0][None] * np.ones((shape[0], 1, 1))
    if noise == "varying profiles":
        varying = varying * np.exp(0.1 * random.standard_normal(varying.shape))
    terms[1] = "abr"
    exact = np.einsum(",".join(terms) + "->" + letters, samples, varying, *loadings[1:])
    exact /= np.sqrt(np.square(exact).mean())
    return noise, NOISES[noise](exact, 10 ** (-ratio_db / 20), random), [samples, *loadings]


def judge(number: int) -> tuple[list[Component], list[Timed]]:
    """Fit one tensor with as many components as were planted and with more, and judge each of them."""
    noise, tensor, true = planted(number)
    judged, timed = [], []
    for beyond in range(3):
        rank = true[0].shape[1] + beyond
        settings = Settings.recommended(rank, negative="keep", missing="nan", diagnose=False)
        started = time.process_time()
        result = solve(tensor, settings, threads=1)
        fitted = time.process_time()
        stability = assess_stability(tensor, result.factors, settings, resolved=result.resolved, threads=1)
        timed.append(Timed(fitted - started, time.process_time() - fitted))
        assert stability is not None
        ours = [A.astype(np.float64) for A in result.factors[1:]]
        padded = [np.hstack([A, np.zeros((len(A), beyond))]) for A in true[1:]]
        matched = aligned_with(ours, padded)[1]
        others = [
            solve(tensor, settings.model_copy(update={"seed": seed}), threads=1).factors[1:]
            for seed in range(1, 1 + OTHER_SEEDS)
        ]
        agreed = np.median([aligned_with(ours, [A.astype(np.float64) for A in other])[1] for other in others], axis=0)
        halves = stability.split_half or (0.0,) * rank
        for r, (replicability, half) in enumerate(zip(stability.replicability, halves, strict=True)):
            if replicability is not None:
                scores = (replicability, half or 0.0, float(agreed[r]))
                judged.append(Component(noise, beyond, bool(matched[r] > RIGHT), *scores))
    return judged, timed


def auc(components: Sequence[Component], score: str) -> float | None:
    """Return the probability that a right component has a higher score than a wrong one; None without both."""
    values = np.array([getattr(one, score) for one in components])
    right = np.array([one.right for one in components], bool)
    if right.all() or not right.any():
        return None
    ranks = rankdata(values)
    below = ranks[right].sum() - right.sum() * (right.sum() + 1) / 2
    return float(below / (right.sum() * (~right).sum()))


def row(name: str, components: Sequence[Component]) -> list[str]:
    right = sum(one.right for one in components)
    found = [auc(components, score) for score in SCORES]
    return [name, str(len(components)), str(right), *("–" if value is None else f"{value:.3f}" for value in found)]


def page(components: Sequence[Component], timed: Sequence[Timed], first: int, count: int) -> str:
    by_noise = [row(noise, [one for one in components if one.noise == noise]) for noise in NOISES]
    by_rank = [
        row(name, [one for one in components if one.beyond == beyond])
        for beyond, name in enumerate(("as many as planted", "one more", "two more"))
    ]
    thresholds = []
    for threshold in (0.8, 0.9, 0.95, 0.99):
        above = [one for one in components if one.replicability >= threshold]
        kept = sum(one.right for one in above) / max(1, sum(one.right for one in components))
        right = sum(one.right for one in above) / max(1, len(above))
        thresholds.append([f"{threshold:g}", str(len(above)), f"{right:.1%}", f"{kept:.1%}"])
    head = ["", "components", "right", *(score.replace("_", " ") for score in SCORES)]
    return (
        "# Right and wrong components\n\n"
        f"By `python -m benchmarks.stability --first {first} --count {count}` on {machine()}.\n\n"
        f"{count} tensors with 2 to 5 planted components, at 20, 10 and 5 dB, each fitted with the planted number of\n"
        "components and with one and two more, by the recommended settings. A component is right if its loadings\n"
        f"match planted ones with a product of cosines above {RIGHT:g}. Columns are areas under the curve (AUC), the\n"
        "probability that a right component scores higher than a wrong one: 0.5 by chance. *Agreement*: the median\n"
        f"congruence with the fits from {OTHER_SEEDS} other seeds.\n\n"
        + markdown(head, [*by_noise, *by_rank, row("all", components)])
        + "\n\nWhat a threshold for replicability keeps:\n\n"
        + markdown(["replicability from", "components", "of these right", "of the right ones"], thresholds)
        + f"\n\nProcessor seconds, medians: {statistics.median(one.fit for one in timed):.2f} for a fit, "
        f"{statistics.median(one.stability for one in timed):.2f} for its stability.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=45, help="number of tensors")
    parser.add_argument("--first", type=int, default=1000, help="number of the first one")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args()
    components: list[Component] = []
    timed: list[Timed] = []
    for number in tqdm(range(asked.first, asked.first + asked.count)):
        judged, seconds = judge(number)
        components += judged
        timed += seconds
    asked.output.write_text(page(components, timed, asked.first, asked.count))


if __name__ == "__main__":
    main()
