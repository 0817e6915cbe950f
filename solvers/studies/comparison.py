"""Compare ranks, methods and weights: `compare` yields a state after every run.

Run k of every cell has the same seed, so all methods start from the same factors.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.loop import solve
from sparse_ncp.solvers.errors import AdviceWarning, InvalidInput
from sparse_ncp.solvers.metrics import weights
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.studies.archive import pack, unpack
from sparse_ncp.solvers.studies.recommendation import Recommendation, rank_evidence, recommend
from sparse_ncp.solvers.studies.runs import Descent, Run, components_by_weight
from sparse_ncp.solvers.studies.settings import Cell, ComparisonSettings, Validation
from sparse_ncp.solvers.studies.tables import table
from sparse_ncp.solvers.studies.validation import (
    Validated,
    check_validation,
    checks,
    fitted_part,
    observed_entries,
    run_check,
    validated,
)
from sparse_ncp.solvers.tensor.exclusion import Exclusion
from sparse_ncp.solvers.tensor.scan import Booleans
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.tensor.validation import prepare_tensor

FORMAT = 1


@dataclass(frozen=True)
class ComparisonState:
    """The runs and checks that are done; it can be saved and resumed."""

    settings: ComparisonSettings
    shape: tuple[int, ...]
    runs: tuple[Run, ...] = ()
    checked: tuple[float, ...] = ()  # results of the validation checks that are done

    @property
    def total(self) -> int:
        """The number of runs and checks."""
        return len(self.settings.cells) * self.settings.repeats + len(
            checks(self.settings.validation, self.settings.ranks)
        )

    @property
    def done(self) -> int:
        return len(self.runs) + len(self.checked)

    @property
    def validated(self) -> Validated:
        """The outcomes of the validations, for each rank whose checks are all done."""
        return validated(self.settings.validation, self.settings.ranks, self.checked)

    @property
    def recommendation(self) -> Recommendation | None:
        """The rank, weight and method that the runs recommend, once all runs and checks are done."""
        if self.done < self.total:
            return None
        ranks = self.settings.ranks
        return recommend(table(self.runs), rank_evidence(ranks, self.validated, self._core_consistency()))

    def _core_consistency(self) -> dict[int, float | None]:
        """Return the core consistency of the run of each rank with the lowest relative error."""
        best: dict[int, Run] = {}
        order = {cell: place for place, cell in enumerate(self.settings.cells)}
        for run in sorted(self.runs, key=lambda run: (order[run.cell], run.repeat)):
            rank = run.cell.rank
            if run.error is None and (rank not in best or run.relative_error < best[rank].relative_error):
                best[rank] = run
        return {rank: run.core_consistency for rank, run in best.items()}

    def to_bytes(self) -> bytes:
        """Save the state as the bytes of an `.npz` file without pickles."""
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
        settings = ComparisonSettings.model_validate(header["settings"])
        cells = [_place(cell) for cell in settings.cells]
        runs = []
        for place, numbers in enumerate(header["runs"]):
            fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in numbers.items()}
            fields["cell"] = settings.cells[cells.index(_place(Cell.model_validate(numbers["cell"])))]
            kept = modes if numbers["error"] is None else ()
            seconds, objective = (tuple(row) for row in arrays[f"run{place}_descent"].tolist())
            fields["descent"] = Descent(seconds, objective)
            factors = tuple(arrays[f"run{place}_A{mode}"] for mode in kept)
            if "mode_components" not in fields:  # saved by 0.1.0
                fields["mode_components"] = fields["components"]
                fields["components"] = components_by_weight(weights(factors)) if factors else 0
            runs.append(Run(**fields, factors=factors))
        return cls(settings, tuple(header["shape"]), tuple(runs), tuple(header["checked"]))


def compare(
    tensor: NDArray[Any],
    settings: ComparisonSettings,
    *,
    mask: Booleans | None = None,
    resume: ComparisonState | None = None,
    threads: int | None = None,
) -> Iterator[ComparisonState]:
    """Run every rank with every method and every weight, and yield the state after every run and check.

    Parameters
    ----------
    tensor
        The tensor to decompose.
    settings
        The grid of runs, and the validations.
    mask
        True where an entry is observed; each mode has the tensor's length, or 1 where it is the same all along.
    resume
        A state to resume from, as an earlier call yielded it for the same tensor and settings.
    threads
        The number of threads; all available cores by default.

    Yields
    ------
    ComparisonState
        The runs that are done. The last state has a `recommendation`.

    Examples
    --------
    >>> from sparse_ncp import synthetic
    >>> from sparse_ncp.solvers.studies import ComparisonSettings, compare
    >>> tensor = synthetic.planted((20, 10, 8), rank=2).tensor
    >>> *_, last = compare(tensor, ComparisonSettings(ranks=[2], methods=["hals"], repeats=2))
    >>> last.done
    2
    """
    shape = np.shape(tensor)
    planned = [(cell, repeat) for repeat in range(settings.repeats) for cell in settings.cells]
    common = settings.settings(*planned[0])
    rest, known = tensor, mask
    if settings.validation != Validation():  # before any run
        rest, known = fitted_part(tensor, common, mask)
        exclusion = Exclusion.of(common.exclude, shape)
        with Threads(threads) as pool:
            prepare_tensor(rest, "float64", pool, known, common.missing, common.negative)
        check_validation(settings.validation, rest.shape, observed_entries(rest, known), exclusion)
    state = resume or ComparisonState(settings, shape)
    if (state.settings, state.shape) != (settings, shape):
        raise InvalidInput("resume", "was saved for another study", "pass the same tensor and settings")
    for cell, repeat in planned[len(state.runs) :]:
        run = _run(tensor, cell, repeat, settings.settings(cell, repeat), mask, threads)
        state = replace(state, runs=(*state.runs, run))
        yield state
    for check in checks(settings.validation, settings.ranks)[len(state.checked) :]:
        found = run_check(rest, settings.validation, check, common, threads, mask=known)
        state = replace(state, checked=(*state.checked, found))
        yield state


def _run(
    tensor: NDArray[Any], cell: Cell, repeat: int, settings: Settings, mask: Booleans | None, threads: int | None
) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)  # the caller chose these settings in order to compare them
        try:
            return Run.of(cell, repeat, solve(tensor, settings, mask=mask, threads=threads))
        except InvalidInput as error:
            return Run(cell, repeat, error=str(error))


def _place(cell: Cell) -> tuple[object, ...]:
    """Return what identifies a cell in its grid."""
    return cell.rank, cell.method, cell.beta, cell.sparsity


def _numbers(run: Run) -> dict[str, Any]:
    """Return the fields of a run that are not arrays."""
    numbers = {name: value for name, value in vars(run).items() if name not in ("descent", "factors", "job_id")}
    return {**numbers, "cell": run.cell.model_dump()}
