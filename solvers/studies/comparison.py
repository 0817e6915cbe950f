"""Compare ranks, methods and weights: `compare` yields a state after every run, the last of which has the whole table.

Run k of every cell has the same seed, so all methods start from the same factors.
"""

import math
import statistics
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.loop import solve
from sparse_ncp.solvers.bcd.result import Result
from sparse_ncp.solvers.bcd.state import History
from sparse_ncp.solvers.errors import AdviceWarning, InvalidInput
from sparse_ncp.solvers.metrics import DEAD_SHARE, best_matching, psnr, unit_columns, weights
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.studies.archive import pack, unpack
from sparse_ncp.solvers.studies.settings import Cell, ComparisonSettings
from sparse_ncp.solvers.studies.validation import Validated, check_validation, checks, run_check, validated
from sparse_ncp.solvers.tensor.products import Array, Float64, hadamard

FORMAT = 1


@dataclass(frozen=True)
class Descent:
    """The objective against the computing time, after every sweep of the run that goes on."""

    seconds: tuple[float, ...] = ()
    objective: tuple[float, ...] = ()

    @classmethod
    def of(cls, history: History) -> "Descent":
        kept = [place for place, start in enumerate(history.start) if start is None]
        return cls(tuple(history.seconds[i] for i in kept), tuple(history.objective[i] for i in kept))


@dataclass(frozen=True)
class Run:
    """One run: its numbers, or the error that ended it."""

    cell: Cell
    repeat: int
    objective: float = math.nan
    relative_error: float = math.nan
    seconds: float = math.nan
    iterations: int = 0
    stop_reason: str = ""
    sparsity: tuple[float, ...] = ()  # per mode, as are the components
    components: tuple[int, ...] = ()
    error: str | None = None
    descent: Descent = Descent()
    factors: tuple[Array, ...] = ()

    @classmethod
    def of(cls, cell: Cell, repeat: int, result: Result) -> "Run":
        return cls(
            cell,
            repeat,
            result.objective,
            result.relative_error,
            result.seconds,
            result.iterations,
            result.stop_reason,
            result.sparsity.per_mode,
            result.nonzero_components.per_mode,
            descent=Descent.of(result.history),
            factors=tuple(result.factors),
        )


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the repeats; the deviation of a single one is zero."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        if not values:
            return None
        if not all(map(math.isfinite, values)):  # a PSNR of no component at all
            return cls(math.fsum(values) / len(values), math.nan)
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True)
class Row:
    """One cell of the grid over its repeats. Sparsity, components and PSNR are those of one mode."""

    cell: Cell
    runs: int
    failures: int
    objective: Spread | None
    relative_error: Spread | None
    seconds: Spread | None
    iterations: Spread | None
    sparsity: Spread | None
    components: Spread | None
    factor_match: Spread | None  # between repeats; None for a single one
    psnr: Spread | None  # against the reference, if there is one
    best: int | str | None  # the repeat of the lowest objective, or the name of its run


@dataclass(frozen=True)
class ComparisonState:
    """The runs that are done: a value that can be saved and resumed."""

    settings: ComparisonSettings
    shape: tuple[int, ...]
    runs: tuple[Run, ...] = ()
    checked: tuple[float, ...] = ()  # what the validations that are done have found

    @property
    def total(self) -> int:
        """Runs and checks in all."""
        return len(self.settings.cells) * self.settings.repeats + len(
            checks(self.settings.validation, self.settings.ranks)
        )

    @property
    def done(self) -> int:
        return len(self.runs) + len(self.checked)

    @property
    def validated(self) -> Validated:
        """For each rank of which all checks are done."""
        return validated(self.settings.validation, self.settings.ranks, self.checked)

    def to_bytes(self) -> bytes:
        """As an `.npz` file without pickles."""
        arrays: dict[str, NDArray[Any]] = {}
        for place, run in enumerate(self.runs):
            arrays |= {f"run{place}_A{mode}": A for mode, A in enumerate(run.factors, start=1)}
            arrays[f"run{place}_descent"] = np.array([run.descent.seconds, run.descent.objective])
        header = {
            "study": "compare",
            "format": FORMAT,
            "settings": self.settings.model_dump(mode="json", by_alias=True),
            "shape": self.shape,
            "runs": [_numbers(run) for run in self.runs],
            "checked": self.checked,
        }
        return pack(header, arrays)

    @classmethod
    def from_bytes(cls, content: bytes) -> "ComparisonState":
        header, arrays = unpack(content, "compare", FORMAT)
        modes = range(1, len(header["shape"]) + 1)
        runs = []
        for place, numbers in enumerate(header["runs"]):
            fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in numbers.items()}
            fields["cell"] = Cell.model_validate(numbers["cell"])
            kept = modes if numbers["error"] is None else ()
            seconds, objective = (tuple(row) for row in arrays[f"run{place}_descent"].tolist())
            fields["descent"] = Descent(seconds, objective)
            runs.append(Run(**fields, factors=tuple(arrays[f"run{place}_A{mode}"] for mode in kept)))
        settings = ComparisonSettings.model_validate(header["settings"])
        return cls(settings, tuple(header["shape"]), tuple(runs), tuple(header["checked"]))


def compare(
    tensor: NDArray[Any],
    settings: ComparisonSettings,
    *,
    resume: ComparisonState | None = None,
    threads: int | None = None,
) -> Iterator[ComparisonState]:
    """Yield the state after every run and check. `resume` goes on from any of them."""
    shape = np.shape(tensor)
    check_validation(settings.validation, shape)
    state = resume or ComparisonState(settings, shape)
    if (state.settings, state.shape) != (settings, shape):
        raise InvalidInput("resume", "was saved for another study", "give the same tensor and settings")
    planned = [(cell, repeat) for repeat in range(settings.repeats) for cell in settings.cells]
    for cell, repeat in planned[len(state.runs) :]:
        run = _run(tensor, cell, repeat, settings.settings(cell, repeat), threads)
        state = replace(state, runs=(*state.runs, run))
        yield state
    for check in checks(settings.validation, settings.ranks)[len(state.checked) :]:
        found = run_check(tensor, settings.validation, check, settings.seed, threads)
        state = replace(state, checked=(*state.checked, found))
        yield state


def table(runs: Sequence[Run], mode: int = 1, reference: NDArray[Any] | None = None) -> list[Row]:
    """One row per cell, in the order in which cells first come. `reference` has the true factor of that mode."""
    cells: dict[Cell, list[Run]] = {}
    for run in runs:
        cells.setdefault(run.cell, []).append(run)
    return [_row(cell, of_cell, mode, reference) for cell, of_cell in cells.items()]


def matches(runs: Sequence[Run]) -> list[float]:
    """The factor match of every pair of runs, of the components that are left; the larger number of them counts."""
    models = [comparable(run.factors) for run in runs]
    return [match(one, other) for place, one in enumerate(models) for other in models[place + 1 :]]


def check_reference(reference: NDArray[Any], shape: Sequence[int], mode: int) -> None:
    """Refuse a factor that is not one of this mode."""
    if not 1 <= mode <= len(shape):
        raise InvalidInput("mode", f"is {mode} for {len(shape)} modes", f"count the modes from 1 to {len(shape)}")
    if reference.ndim != 2 or len(reference) != shape[mode - 1]:
        remedy = f"give {shape[mode - 1]} rows, the length of mode {mode}, and a column per component"
        raise InvalidInput("reference", f"has shape {reference.shape}", remedy)


def comparable(factors: Sequence[Array]) -> list[Float64]:
    """The components that are left, with columns of unit length: of many pairs, each model needs that once."""
    w = weights(factors)
    return [unit_columns(A[:, w > DEAD_SHARE * w.max()]) for A in factors]


def match(one: Sequence[Float64], other: Sequence[Float64]) -> float:
    """The factor match score of two models that were made comparable; the larger number of components counts."""
    left: tuple[int, int] = one[0].shape[1], other[0].shape[1]
    if 0 in left:
        return float(left == (0, 0))  # two that have nothing left agree
    cosines = hadamard([A.T @ B for A, B in zip(one, other, strict=True)])
    return float(cosines[best_matching(cosines)].sum()) / max(left)


def _row(cell: Cell, runs: list[Run], mode: int, reference: NDArray[Any] | None) -> Row:
    done = [run for run in runs if run.error is None]
    return Row(
        cell=cell,
        runs=len(runs),
        failures=len(runs) - len(done),
        objective=Spread.of([run.objective for run in done]),
        relative_error=Spread.of([run.relative_error for run in done]),
        seconds=Spread.of([run.seconds for run in done]),
        iterations=Spread.of([run.iterations for run in done]),
        sparsity=Spread.of([run.sparsity[mode - 1] for run in done]),
        components=Spread.of([run.components[mode - 1] for run in done]),
        factor_match=Spread.of(matches(done)),
        psnr=Spread.of([psnr(run.factors[mode - 1], reference) for run in done]) if reference is not None else None,
        best=min(done, key=lambda run: run.objective).repeat if done else None,
    )


def _run(tensor: NDArray[Any], cell: Cell, repeat: int, settings: Settings, threads: int | None) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)  # what is compared is what was asked for
        try:
            return Run.of(cell, repeat, solve(tensor, settings, threads=threads))
        except InvalidInput as error:
            return Run(cell, repeat, error=str(error))


def _numbers(run: Run) -> dict[str, Any]:
    """All but the arrays."""
    numbers = {name: value for name, value in vars(run).items() if name not in ("descent", "factors")}
    return {**numbers, "cell": run.cell.model_dump()}
