"""Small tensors with known components and noise of a known kind."""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np

from sparse_ncp.solvers.studies import Choice, ChoiceSettings, choose
from sparse_ncp.solvers.studies.fitting.fits import model
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.scan import Booleans

Made: TypeAlias = tuple[Float64, list[Float64]]
SHAPE = (20, 16, 12)


def factors(rank: int = 3, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> list[Float64]:
    random = np.random.default_rng(seed)
    return [random.random((length, rank)) ** 3 for length in shape]


def signal(true: list[Float64]) -> Float64:
    """In units of its root mean square."""
    return signal_of(model(true))


def signal_of(exact: Float64) -> Float64:
    return np.asarray(exact / np.sqrt(np.square(exact).mean()))


def gaussian(exact: Float64, random: np.random.Generator) -> Float64:
    """On an offset, so that nothing is clipped."""
    return exact + 2 + 0.1 * random.standard_normal(exact.shape)


def clipped(exact: Float64, random: np.random.Generator) -> Float64:
    return np.maximum(0.0, exact + 0.1 * random.standard_normal(exact.shape))


def counts(exact: Float64, random: np.random.Generator) -> Float64:
    return random.poisson(60 * exact).astype(np.float64)


def correlated(exact: Float64, random: np.random.Generator) -> Float64:
    """Noise that goes slowly along the first mode."""
    white = random.standard_normal((len(exact) + 4, *exact.shape[1:]))
    slow = np.mean([white[place : place + len(exact)] for place in range(5)], axis=0)
    return np.asarray(np.maximum(0.0, exact + 0.1 * np.sqrt(5) * slow))


def heavy_tailed(exact: Float64, random: np.random.Generator) -> Float64:
    return np.maximum(0.0, exact + 2 + 0.05 * random.standard_t(3, exact.shape))


def negative(exact: Float64, random: np.random.Generator) -> Float64:
    """Gaussian noise on readings near zero, a third of which are negative."""
    return np.asarray(exact + 0.1 * random.standard_normal(exact.shape))


def growing(exact: Float64, random: np.random.Generator) -> Float64:
    """Noise in proportion to the signal."""
    return np.asarray(exact * random.gamma(50, 1 / 50, exact.shape))


def channels(exact: Float64, random: np.random.Generator) -> Float64:
    """Channels, of which some are ten times as noisy as others."""
    levels = np.geomspace(0.03, 0.3, exact.shape[1])[random.permutation(exact.shape[1])]
    return np.asarray(exact + levels[:, None] * random.standard_normal(exact.shape))


def holes(exact: Float64, random: np.random.Generator) -> Float64:
    """A fifth of the readings missing, single ones."""
    return np.where(random.random(exact.shape) < 0.2, np.nan, negative(exact, random))


def clipped_holes(exact: Float64, random: np.random.Generator) -> Float64:
    """Half of the readings missing, the others clipped at zero."""
    return np.where(random.random(exact.shape) < 0.5, np.nan, clipped(exact, random))


def count_holes(exact: Float64, random: np.random.Generator) -> Float64:
    return np.where(random.random(exact.shape) < 0.2, np.nan, counts(exact, random))


def band(exact: Float64, random: np.random.Generator) -> Float64:
    """A band as of scattered light, missing in every sample."""
    tensor, _, rows, places = negative(exact, random), *np.indices(exact.shape)
    tensor[np.abs(rows / 16 - places / 12) < 0.08] = np.nan
    return tensor


def made(noise: str, rank: int = 3, seed: int = 0) -> Made:
    true = factors(rank, seed=seed)
    return NOISES[noise](signal(true), np.random.default_rng(seed + 100)), true


def chosen(tensor: Float64, mask: Booleans | None = None, **fields: object) -> Choice:
    given = {"rank": 8, "seeds": 3, "missing": "nan", "negative": "keep", **fields}
    *_, last = choose(tensor, ChoiceSettings.model_validate(given), mask=mask, threads=1)
    assert last.outcome is not None
    return last.outcome


@cache
def choice(noise: str, rank: int = 3, seed: int = 0) -> Choice:
    """Choose for a planted tensor; tests share the outcome, since a study takes seconds."""
    return chosen(made(noise, rank, seed)[0])


NOISES: dict[str, Callable[[Float64, np.random.Generator], Float64]] = {
    "gaussian": gaussian,
    "negative": negative,
    "growing": growing,
    "channels": channels,
    "holes": holes,
    "clipped holes": clipped_holes,
    "count holes": count_holes,
    "band": band,
    "clipped": clipped,
    "counts": counts,
    "correlated": correlated,
    "heavy_tailed": heavy_tailed,
}
