"""Tensors with planted components and noise of many kinds, each made from its number alone."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from sparse_ncp.solvers.studies.fitting.fits import model
from sparse_ncp.solvers.tensor.products import Float64

SHAPES = ((26, 22, 18), (48, 24, 10), (16, 16, 40), (34, 30, 16), (15, 12, 10, 9), (24, 10, 8, 7))
RATIOS_DB = (30, 20, 10)
SPANS = (1, 3, 10)
UNITS = (1e-6, 1.0, 1e5)
# Cosine of two planted components at most, multiplied over the modes.
MOST_ALIKE = 0.8
SEED = 50_000  # far from every seed of the tests

Noise: TypeAlias = Callable[[Float64, float, np.random.Generator], Float64]


class Planted(NamedTuple):
    """A tensor, NaN where it is missing, the components in it, and the kind of its noise."""

    tensor: Float64
    factors: list[Float64]
    kind: str


def columns(length: int, rank: int, random: np.random.Generator) -> Float64:
    """Return decays, resonances, steps or sparse loadings: one kind for all columns of a mode."""
    place = np.arange(length)[:, None] / length
    kind = random.integers(4)
    if kind == 0:
        return np.asarray(np.exp(-place * random.uniform(1, 12, rank)))
    if kind == 1:
        return np.asarray(1 / (1 + np.square((place - random.uniform(0, 1, rank)) / random.uniform(0.02, 0.15, rank))))
    if kind == 2:
        starts = random.uniform(0, 0.8, rank)
        return 0.02 + np.asarray((place >= starts) & (place < starts + random.uniform(0.1, 0.5, rank)), np.float64)
    return random.gamma(0.4, size=(length, rank)) + 1e-3


def components(shape: Sequence[int], rank: int, random: np.random.Generator) -> list[Float64]:
    """Return factors of which no two components are nearly equal, with scores of samples in the first mode.

    The model has a root mean square of one.
    """
    span = float(random.choice(SPANS))
    while True:
        scores = random.gamma(2.0, size=(shape[0], rank))
        drawn = [scores, *(columns(length, rank, random) for length in shape[1:])]
        factors = [np.asarray(A / np.linalg.norm(A, axis=0)) for A in drawn]
        cosines = np.prod([A.T @ A for A in factors], axis=0) - np.eye(rank)
        if cosines.max() < MOST_ALIKE:
            break
    factors[0] = factors[0] * random.permutation(np.geomspace(1, 1 / span, rank))
    factors[0] = factors[0] / math.sqrt(float(np.square(model(factors)).mean()))
    return factors


def gaussian(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    return np.asarray(exact + level * random.standard_normal(exact.shape))


def clipped(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    return np.maximum(0.0, gaussian(exact, level, random))


def counts(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Draw counts with a mean of 1 to 50, whatever the level."""
    rate = math.exp(random.uniform(0, math.log(50))) / float(exact.mean())
    return random.poisson(rate * exact).astype(np.float64)


def growing_slowly(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add noise whose standard deviation is proportional to the square root of the signal."""
    return np.asarray(exact + level * np.sqrt(exact + 1e-3) * random.standard_normal(exact.shape))


def growing(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add noise whose standard deviation is proportional to the signal, on a floor."""
    return np.asarray(exact + level * (exact + 0.05) * random.standard_normal(exact.shape))


def multiplicative(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Multiply by gamma noise of 5 to 40 percent."""
    shape = random.uniform(0.05, 0.4) ** -2
    return np.asarray(exact * random.gamma(shape, 1 / shape, exact.shape))


def channels(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add noise with a level for every index of the second mode, and of the third."""
    levels = level * np.exp(random.normal(0, 0.8, exact.shape[1]))
    levels = levels[:, None] * np.exp(random.normal(0, 0.4, exact.shape[2]))
    return np.asarray(
        exact + levels.reshape(levels.shape + (1,) * (exact.ndim - 3)) * random.standard_normal(exact.shape)
    )


def shared(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add noise that indices of the second mode share, in no order."""
    mixing = np.eye(exact.shape[1]) + random.uniform(0.1, 0.4) * random.standard_normal((exact.shape[1],) * 2)
    mixing /= np.linalg.norm(mixing, axis=0)
    noise = np.moveaxis(np.tensordot(random.standard_normal(exact.shape), mixing, (1, 0)), -1, 1)
    return np.asarray(exact + level * noise)


def smooth(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Add noise that changes slowly along the second or the third mode."""
    mode, width = int(random.integers(1, 3)), int(random.integers(2, 5))
    noise = random.standard_normal(exact.shape)
    slow = np.sum([np.roll(noise, shift, axis=mode) for shift in range(width)], axis=0) / math.sqrt(width)
    return np.asarray(exact + level * slow)


def _few_missing(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    return np.where(random.random(exact.shape) < 0.2, np.nan, gaussian(exact, level, random))


def _many_missing(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    return np.where(random.random(exact.shape) < 0.5, np.nan, clipped(exact, level, random))


def _band(exact: Float64, level: float, random: np.random.Generator) -> Float64:
    """Leave a band along the diagonal of the second and third mode out, as of scattered light, in every sample."""
    rows, places = np.arange(exact.shape[1])[:, None] / exact.shape[1], np.arange(exact.shape[2]) / exact.shape[2]
    band = np.abs(rows - random.uniform(0.7, 1.2) * places - random.uniform(-0.2, 0.2)) < random.uniform(0.04, 0.1)
    band &= ~(band.all(axis=1, keepdims=True) | band.all(axis=0, keepdims=True))
    noisy = gaussian(exact, level, random)
    noisy[:, band] = np.nan
    return noisy


KINDS: dict[str, Noise] = {
    "gaussian": gaussian,
    "clipped": clipped,
    "counts": counts,
    "sd ∝ mean^.5": growing_slowly,
    "sd ∝ mean": growing,
    "multiplicative": multiplicative,
    "level per channel": channels,
    "shared by channels": shared,
    "smooth along a mode": smooth,
    "20 % missing": _few_missing,
    "50 % missing, clipped": _many_missing,
    "band missing": _band,
    "background": gaussian,
    "profiles vary": gaussian,
    "one component": gaussian,
    "outlying samples": gaussian,
    "noise alone": gaussian,
}


def planted(number: int) -> Planted:
    """Return the tensor with this number."""
    random = np.random.default_rng(SEED + number)
    kind = tuple(KINDS)[number % len(KINDS)]
    level = 10 ** (-float(random.choice(RATIOS_DB)) / 20)
    shape = SHAPES[random.integers(len(SHAPES))]
    rank = {"one component": 1, "noise alone": 0}.get(kind, int(random.integers(2, 8)))
    noise, unit = KINDS[kind], float(random.choice(UNITS))
    if rank == 0:
        noise = (gaussian, clipped, smooth)[int(random.integers(3))]
        tensor = noise(np.zeros(shape), 1.0, random)
        return Planted(unit * tensor, [np.zeros((length, 0)) for length in shape], kind)
    factors = components(shape, rank, random)
    if kind == "one component":
        noise = (gaussian, clipped, counts, growing, channels)[int(random.integers(5))]
    if kind == "background":
        flat = [np.full((length, 1), 1 / math.sqrt(length)) for length in shape]
        flat[0] *= random.uniform(0.2, 1.0) * math.sqrt(math.prod(shape))
        factors = [np.hstack(pair) for pair in zip(factors, flat, strict=True)]
    if kind == "outlying samples":
        factors = _with_outliers(factors, random)
    exact = _varying(factors, random) if kind == "profiles vary" else model(factors)
    tensor = noise(exact, level, random)
    return Planted(unit * tensor, factors, kind)


def _with_outliers(factors: Sequence[Float64], random: np.random.Generator) -> list[Float64]:
    """Add one or two samples with a spectrum of their own, one to three times as strong as the sample."""
    count, found = int(random.integers(1, 3)), list(factors)
    samples = random.choice(len(factors[0]), count, replace=False)
    for sample in samples:
        size = math.sqrt(float(np.square(model(factors)[sample]).sum()))
        own = [columns(len(A), 1, random) for A in factors[1:]]
        score = np.zeros((len(factors[0]), 1))
        score[sample] = random.uniform(1, 3) * size
        found = [np.hstack(pair) for pair in zip(found, [score, *(A / np.linalg.norm(A) for A in own)], strict=True)]
    return found


def _varying(factors: Sequence[Float64], random: np.random.Generator) -> Float64:
    """Return a model whose profiles in the second mode differ by 4 to 8 percent from sample to sample."""
    amount = random.uniform(0.04, 0.08)
    samples = []
    for row in factors[0]:
        profile = factors[1] * np.exp(amount * np.cumsum(random.standard_normal(factors[1].shape), axis=0) / 2)
        samples.append(model([row[None, :], profile, *factors[2:]]))
    return np.concatenate(samples)
