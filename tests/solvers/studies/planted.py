"""Small tensors with known components and noise of a known kind."""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np

from sparse_ncp.solvers.studies import Choice, ChoiceSettings, choose
from sparse_ncp.solvers.studies.fitting.fits import model
from sparse_ncp.solvers.tensor.products import Float64

Made: TypeAlias = tuple[Float64, list[Float64]]
SHAPE = (20, 16, 12)


def factors(rank: int = 3, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> list[Float64]:
    random = np.random.default_rng(seed)
    return [random.random((length, rank)) ** 3 for length in shape]


def signal(true: list[Float64]) -> Float64:
    """In units of its root mean square."""
    exact = model(true)
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


def made(noise: str, rank: int = 3, seed: int = 0) -> Made:
    true = factors(rank, seed=seed)
    return NOISES[noise](signal(true), np.random.default_rng(seed + 100)), true


def chosen(tensor: Float64, **fields: object) -> Choice:
    settings = ChoiceSettings.model_validate({"rank": 8, "seeds": 3, **fields})
    *_, last = choose(tensor, settings, threads=1)
    assert last.outcome is not None
    return last.outcome


@cache
def choice(noise: str, rank: int = 3, seed: int = 0) -> Choice:
    """Choose for a planted tensor; tests share the outcome, since a study takes seconds."""
    return chosen(made(noise, rank, seed)[0])


NOISES: dict[str, Callable[[Float64, np.random.Generator], Float64]] = {
    "gaussian": gaussian,
    "clipped": clipped,
    "counts": counts,
    "correlated": correlated,
    "heavy_tailed": heavy_tailed,
}
