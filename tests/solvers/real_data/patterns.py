"""Patterns of missing entries, and tensors that have them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.scan import Booleans

Pattern = Callable[[tuple[int, ...], np.random.Generator], Booleans]


def scattered(share: float) -> Pattern:
    return lambda shape, random: random.random(shape) < share


def band(shape: tuple[int, ...], random: np.random.Generator) -> Booleans:
    """Return entries that are missing at the same places along the first mode, and along the fourth and later ones."""
    lengths = [length if 0 < mode < 3 else 1 for mode, length in enumerate(shape)]
    return np.broadcast_to(random.random(lengths) < 0.3, shape)


def fibres(shape: tuple[int, ...], random: np.random.Generator) -> Booleans:
    """Whole fibres of the last mode."""
    return np.broadcast_to(random.random((*shape[:-1], 1)) < 0.3, shape)


def band_and_few(shape: tuple[int, ...], random: np.random.Generator) -> Booleans:
    missing = band(shape, random) if len(shape) > 2 else np.zeros(shape, bool)
    return missing | (random.random(shape) < 0.02)


def uneven(shape: tuple[int, ...], random: np.random.Generator) -> Booleans:
    """Rows of the first mode with nothing, half, and nearly everything missing: what finds a wrong Gram."""
    share = np.array([0.0, 0.5, 0.95])[np.arange(shape[0]) % 3]
    return random.random(shape) < share.reshape(-1, *(1,) * (len(shape) - 1))


def late_readings(shape: tuple[int, ...], random: np.random.Generator) -> Booleans:
    """The end of the last mode, in two indices of the first."""
    missing = np.zeros(shape, bool)
    missing[:2, ..., shape[-1] // 2 :] = True
    return missing


PATTERNS: dict[str, Pattern] = {
    "scattered": scattered(0.3),
    "few": scattered(0.02),
    "band": band,
    "fibres": fibres,
    "band and few": band_and_few,
    "uneven": uneven,
    "late readings": late_readings,
}


def missing_in(name: str, shape: tuple[int, ...], seed: int = 0) -> Booleans:
    """Return where entries are missing; every index of every mode has an observed one."""
    missing = np.array(PATTERNS[name](shape, np.random.default_rng(seed)))
    for mode in range(len(shape)):
        others = tuple(other for other in range(len(shape)) if other != mode)
        for index in np.flatnonzero(missing.all(axis=others)):
            place = [0] * len(shape)
            place[mode] = int(index)
            missing[tuple(place)] = False
    return missing


def holed(X: Array, missing: Booleans) -> Array:
    """A copy in the same order, with NaN where entries are missing."""
    gaps = X.copy(order="K")
    gaps[missing] = np.nan
    return gaps


def model(factors: Sequence[Array]) -> Float64:
    letters = "abcdefgh"[: len(factors)]
    terms = ",".join(f"{letter}z" for letter in letters)
    return np.asarray(np.einsum(f"{terms}->{letters}", *(A.astype(np.float64) for A in factors), optimize=True))


def row_grams(observed: Booleans, factors: Sequence[Array], mode: int) -> Float64:
    """Σ b bᵀ over the observed entries of every row, from the definition."""
    letters = "abcdefgh"[: len(factors)]
    others = [other for other in range(len(factors)) if other != mode]
    terms = ",".join(f"{letters[other]}y,{letters[other]}z" for other in others)
    exact = [A.astype(np.float64) for other in others for A in (factors[other],) * 2]
    return np.asarray(np.einsum(f"{letters},{terms}->{letters[mode]}yz", observed.astype(float), *exact, optimize=True))


def mttkrp(X: Array, factors: Sequence[Array], mode: int) -> Float64:
    letters = "abcdefgh"[: len(factors)]
    others = [other for other in range(len(factors)) if other != mode]
    terms = ",".join(f"{letters[other]}z" for other in others)
    exact = [factors[other].astype(np.float64) for other in others]
    return np.asarray(np.einsum(f"{letters},{terms}->{letters[mode]}z", X.astype(np.float64), *exact, optimize=True))


# Settings with which a fit of `banded` with three components is large inside of its band.
UNIDENTIFIED: dict[str, Any] = {"missing": "nan", "seed": 2, "regrow": False, "starts": 1}


def peaks(centres: list[float], width: float, length: int) -> Any:
    places = np.arange(length)[:, None]
    return np.exp(-0.5 * ((places - np.array(centres)) / width) ** 2)


def banded() -> Any:
    """Two components, of which the second peaks inside of a band that was not read."""
    random = np.random.default_rng(0)
    truth = [random.random((10, 2)) + 0.2, peaks([8.0, 24.0], 2.5, 40), peaks([6.0, 18.0], 2.5, 30)]
    X = model(truth) + 0.01 * random.random((10, 40, 30))
    emission, excitation = np.meshgrid(np.arange(40), np.arange(30), indexing="ij")
    X[:, np.abs(emission - excitation - 6) < 5] = np.nan
    return X
