"""Validate a number of components by split halves and by held-out entries."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.loop import solve
from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.metrics import congruences
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.studies.fitting.fits import model
from sparse_ncp.solvers.studies.settings import Holdout, SplitHalf, Validation

# Tucker's congruence from which two factors count as the same.
SAME = 0.95


@dataclass(frozen=True)
class Check:
    """One check of a validation: a number of components, and the index of its pair of halves or fold."""

    kind: Literal["split_half", "holdout"]
    components: int
    place: int


@dataclass(frozen=True)
class SplitHalfOutcome:
    """The lowest congruence in the other modes, for each pair of halves."""

    components: int
    congruence: tuple[float, ...]

    @property
    def passed(self) -> bool:
        return min(self.congruence) > SAME


@dataclass(frozen=True)
class HoldoutOutcome:
    """The relative error on held-out entries, for each fold."""

    components: int
    relative_error: tuple[float, ...]


@dataclass(frozen=True)
class Validated:
    """Outcomes of the checks, for every number of components whose checks are all done."""

    split_half: tuple[SplitHalfOutcome, ...]
    holdout: tuple[HoldoutOutcome, ...]


def checks(validation: Validation, numbers: Sequence[int]) -> list[Check]:
    """Return the checks of these numbers of components, in the order in which they are run."""
    half, holdout = validation.split_half, validation.holdout
    pairs, folds = pairs_of_halves(half.parts) if half else 0, holdout.folds if holdout else 0
    return [Check("split_half", k, pair) for k in numbers for pair in range(pairs)] + [
        Check("holdout", k, fold) for k in numbers for fold in range(folds)
    ]


def run_check(tensor: NDArray[Any], validation: Validation, check: Check, seed: int, threads: int | None) -> float:
    """Return the congruence of a pair of halves, or the relative error on the entries of a fold."""
    settings = Settings.recommended(rank=check.components, seed=seed)
    if check.kind == "split_half" and validation.split_half is not None:
        return split_half(tensor, settings, validation.split_half, check.place, threads)
    return holdout_error(tensor, settings, validation.holdout or Holdout(), check.place, threads)


def validated(validation: Validation, numbers: Sequence[int], found: Sequence[float]) -> Validated:
    """Return the outcomes of the checks, given the results of those that are done."""
    done: dict[tuple[str, int], list[float]] = {}
    for check, value in zip(checks(validation, numbers), found, strict=False):
        done.setdefault((check.kind, check.components), []).append(value)
    half, holdout = validation.split_half, validation.holdout
    pairs, folds = pairs_of_halves(half.parts) if half else 0, holdout.folds if holdout else 0
    return Validated(
        tuple(
            SplitHalfOutcome(k, tuple(v)) for (kind, k), v in done.items() if kind == "split_half" and len(v) == pairs
        ),
        tuple(HoldoutOutcome(k, tuple(v)) for (kind, k), v in done.items() if kind == "holdout" and len(v) == folds),
    )


def check_validation(validation: Validation, shape: tuple[int, ...]) -> None:
    """Raise InvalidInput if the validation does not fit a tensor of this shape."""
    if validation.split_half is not None:
        _check_split_half(validation.split_half, shape)
    block = None if validation.holdout is None else validation.holdout.block
    if block is None:
        return
    if len(block) != len(shape):
        problem = f"has {len(block)} numbers for {len(shape)} modes"
        raise InvalidInput("validate.holdout.block", problem, f"give {len(shape)}, one per mode")
    covered = [size >= length for size, length in zip(block, shape, strict=True)]
    for mode in range(len(shape)):
        if all(covered[:mode] + covered[mode + 1 :]):
            remedy = "give smaller blocks, so that every row keeps entries to fit"
            raise InvalidInput("validate.holdout.block", f"covers whole rows of mode {mode + 1}", remedy)


def _check_split_half(asked: SplitHalf, shape: tuple[int, ...]) -> None:
    if asked.mode > len(shape):
        remedy = f"count the modes from 1 to {len(shape)}"
        raise InvalidInput("validate.split_half.mode", f"is {asked.mode} for {len(shape)} modes", remedy)
    if shape[asked.mode - 1] < asked.parts:
        problem = f"is {asked.parts} for a mode of length {shape[asked.mode - 1]}"
        raise InvalidInput("validate.split_half.parts", problem, "give fewer, or split another mode")
    if len(shape) < 3:
        remedy = "use a tensor of order 3 or more: the factors of a matrix are not unique"
        raise InvalidInput("validate.split_half", "compares factors of matrices", remedy)


def pairs_of_halves(parts: int) -> int:
    """Return the number of ways to combine that many parts into two halves."""
    return math.comb(parts, parts // 2) // 2


def split_half(
    tensor: NDArray[Any], settings: Settings, asked: SplitHalf, pair: int, threads: int | None = None
) -> float:
    """Fit both halves of a pair, and return the lowest congruence of matched components in the other modes.

    Index i belongs to part i mod parts, so that every half has indices from all over the mode.
    """
    axis, length = asked.mode - 1, tensor.shape[asked.mode - 1]
    first = list(combinations(range(asked.parts), asked.parts // 2))[pair]
    mine = np.isin(np.arange(length) % asked.parts, first)
    halves = [np.ascontiguousarray(np.compress(chosen, tensor, axis=axis)) for chosen in (mine, ~mine)]
    if not all(half.any() for half in halves):
        return 0.0  # one of them has no components
    fits = [solve(half, settings, threads=threads).factors for half in halves]
    others = [[A for mode, A in enumerate(factors) if mode != axis] for factors in fits]
    return float(congruences(*others).min())


def holdout_error(
    tensor: NDArray[Any], settings: Settings, asked: Holdout, fold: int, threads: int | None = None
) -> float:
    """Fit all entries but those of a fold, and return the relative error on these."""
    seen = ~left_out(tensor.shape, asked, fold, settings.seed)
    result = solve(tensor, settings, mask=seen, threads=threads)
    exact = np.asarray(tensor, np.float64)[~seen]
    missed = exact - model([A.astype(np.float64) for A in result.factors])[~seen]
    size = float(np.linalg.norm(exact))
    return float(np.linalg.norm(missed)) / size if size > 0 else math.inf


def left_out(shape: Sequence[int], asked: Holdout, fold: int, seed: int) -> NDArray[np.bool_]:
    """Return which entries a fold leaves out: random ones or random blocks, but never a whole row of a mode.

    Each fold draws anew, so that any number of folds goes with any fraction.
    """
    block = asked.block or (1,) * len(shape)
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(fold,)))
    grid = [-(-length // size) for length, size in zip(shape, block, strict=True)]
    drawn = random.random(grid) < asked.fraction
    if not drawn.any():  # few blocks: leave out one
        drawn[np.unravel_index(int(random.integers(drawn.size)), drawn.shape)] = True
    out = drawn
    for axis, (size, length) in enumerate(zip(block, shape, strict=True)):
        out = np.repeat(out, size, axis=axis).take(range(length), axis=axis)
    for axis in range(out.ndim):  # a row without entries could not be fitted
        others = tuple(other for other in range(out.ndim) if other != axis)
        whole = out.all(axis=others, keepdims=True)
        out = out & ~whole
    return out
