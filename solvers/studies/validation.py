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
from sparse_ncp.solvers.studies.settings import ChoiceSettings, Holdout, SplitHalf, Validation
from sparse_ncp.solvers.tensor.exclusion import Exclusion, exclude_with
from sparse_ncp.solvers.tensor.scan import Booleans
from sparse_ncp.solvers.tensor.validation import describe_indices
from sparse_ncp.solvers.zeros import mask_of_readings

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


def run_check(
    tensor: NDArray[Any],
    validation: Validation,
    check: Check,
    common: Settings | ChoiceSettings,
    threads: int | None,
    *,
    mask: Booleans | None = None,
) -> float:
    """Return the congruence of a pair of halves, or the relative error on the entries of a fold.

    `common` says how to take missing and negative entries, and has the seed; the tensor and the mask are those of
    `fitted_part`.
    """
    same = {"seed": common.seed, "missing": common.missing, "negative": common.negative}
    settings = Settings.recommended(rank=check.components, **same)
    if check.kind == "split_half" and validation.split_half is not None:
        return split_half(tensor, settings, validation.split_half, check.place, threads, mask)
    return holdout_error(tensor, settings, validation.holdout or Holdout(), check.place, threads, mask)


def fitted_part(
    tensor: NDArray[Any], settings: Settings | ChoiceSettings, mask: Booleans | None
) -> tuple[NDArray[Any], Booleans | None]:
    """Return the tensor and the mask without what runs with these settings leave out: indices, and hidden holes."""
    known = mask_of_readings(tensor, settings.zeros, mask, settings.exclude)
    exclusion = Exclusion.of(settings.exclude, np.shape(tensor))
    array = np.asanyarray(tensor)
    return (exclusion.array(array), exclusion.mask(known)) if exclusion else (array, known)


def observed_entries(tensor: NDArray[Any], mask: Booleans | None) -> Booleans:
    """Return where an entry is neither NaN nor masked."""
    entries = np.ma.getdata(tensor)
    observed: Booleans = ~np.ma.getmaskarray(tensor)
    if entries.dtype.kind == "f":
        observed &= ~np.isnan(entries)
    return observed if mask is None else observed & mask


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


def check_validation(
    validation: Validation,
    shape: tuple[int, ...],
    observed: Booleans | None = None,
    exclusion: Exclusion | None = None,
) -> None:
    """Raise InvalidInput if the validation does not fit a tensor of this shape, or its observed entries.

    Shape and entries are those without excluded indices, if there is an exclusion.
    """
    if validation.split_half is not None:
        _check_split_half(validation.split_half, shape, observed, exclusion)
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


def _check_split_half(
    asked: SplitHalf, shape: tuple[int, ...], observed: Booleans | None, exclusion: Exclusion | None
) -> None:
    if asked.mode > len(shape):
        remedy = f"count the modes from 1 to {len(shape)}"
        raise InvalidInput("validate.split_half.mode", f"is {asked.mode} for {len(shape)} modes", remedy)
    if shape[asked.mode - 1] < asked.parts:
        problem = f"is {asked.parts} for a mode of length {shape[asked.mode - 1]}"
        raise InvalidInput("validate.split_half.parts", problem, "give fewer, or split another mode")
    if len(shape) < 3:
        remedy = "use a tensor of order 3 or more: the factors of a matrix are not unique"
        raise InvalidInput("validate.split_half", "compares factors of matrices", remedy)
    if observed is None or observed.all():
        return
    unread = _unread_in_halves(asked, observed)
    if not unread:
        return
    if exclusion is not None:
        unread = {mode: exclusion.kept[mode - 1][indices].tolist() for mode, indices in unread.items()}
    problem = f"has halves in which {describe_indices(unread)} no observed entry"
    before = {} if exclusion is None else exclusion.by_mode()
    remedy = f"leave the check out, or leave out what has none: {exclude_with(before, unread)}"
    others = (SplitHalf(mode=other + 1, parts=2) for other in range(len(shape)) if shape[other] >= 2)
    able = next((other for other in others if not _unread_in_halves(other, observed)), None)
    if able is not None:
        remedy = f'give validate.split_half {{"mode": {able.mode}, "parts": {able.parts}}}, or {remedy}'
    raise InvalidInput("validate.split_half", problem, remedy)


def _unread_in_halves(asked: SplitHalf, observed: Booleans) -> dict[int, list[int]]:
    """Return the indices of each mode, counted from 1, that have no reading in one of the halves."""
    unread: dict[int, set[int]] = {}
    for pair in range(pairs_of_halves(asked.parts)):
        for half in _halves(asked, observed.shape, pair):
            seen = np.compress(half, observed, axis=asked.mode - 1)
            for mode in range(observed.ndim):
                others = tuple(other for other in range(observed.ndim) if other != mode)
                places = np.flatnonzero(~seen.any(axis=others))
                if mode == asked.mode - 1:
                    places = np.flatnonzero(half)[places]
                if places.size:
                    unread.setdefault(mode + 1, set()).update(places.tolist())
    return {mode: sorted(indices) for mode, indices in sorted(unread.items())}


def pairs_of_halves(parts: int) -> int:
    """Return the number of ways to combine that many parts into two halves."""
    return math.comb(parts, parts // 2) // 2


def _halves(asked: SplitHalf, shape: Sequence[int], pair: int) -> tuple[Booleans, Booleans]:
    """Return which indices of the mode are in each half: index i belongs to part i mod parts."""
    first = list(combinations(range(asked.parts), asked.parts // 2))[pair]
    mine = np.isin(np.arange(shape[asked.mode - 1]) % asked.parts, first)
    return mine, ~mine


def split_half(
    tensor: NDArray[Any],
    settings: Settings,
    asked: SplitHalf,
    pair: int,
    threads: int | None = None,
    mask: Booleans | None = None,
) -> float:
    """Fit both halves of a pair, and return the lowest congruence of matched components in the other modes."""
    axis, halves = asked.mode - 1, []
    for chosen in _halves(asked, tensor.shape, pair):
        part = tensor[(slice(None),) * axis + (chosen,)]
        seen = None if mask is None else np.compress(chosen, np.broadcast_to(mask, tensor.shape), axis=axis)
        halves.append((part, seen))
    if not all((np.ma.filled(part, 0) > 0).any() for part, _ in halves):
        return 0.0  # one of them has no components
    fits = [solve(part, settings, mask=seen, threads=threads).factors for part, seen in halves]
    others = [[A for mode, A in enumerate(factors) if mode != axis] for factors in fits]
    return float(congruences(*others).min())


def holdout_error(
    tensor: NDArray[Any],
    settings: Settings,
    asked: Holdout,
    fold: int,
    threads: int | None = None,
    mask: Booleans | None = None,
) -> float:
    """Fit all entries but those of a fold, and return the relative error on these."""
    observed = ~np.ma.getmaskarray(tensor)
    if mask is not None:
        observed &= mask
    entries = np.asarray(np.ma.getdata(tensor), np.float64)
    observed &= ~np.isnan(entries)
    out = left_out(tensor.shape, asked, fold, settings.seed, None if observed.all() else observed)
    result = solve(tensor, settings, mask=observed & ~out, threads=threads)
    exact = entries[out]
    missed = exact - model([A.astype(np.float64) for A in result.factors])[out]
    size = float(np.linalg.norm(exact))
    return float(np.linalg.norm(missed)) / size if size > 0 else math.inf


def left_out(shape: Sequence[int], asked: Holdout, fold: int, seed: int, observed: Booleans | None = None) -> Booleans:
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
    if observed is not None:
        out = out & observed
    for axis in range(out.ndim):  # a row without entries could not be fitted
        others = tuple(other for other in range(out.ndim) if other != axis)
        kept = ~out if observed is None else observed & ~out
        out = out & kept.any(axis=others, keepdims=True)
    return out
