"""Tables and plots of a study, made from the records and files of its runs."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING, Literal, TypeAlias

from sparse_ncp.solvers import History, InvalidInput
from sparse_ncp.solvers.runtime import Array, Float64
from sparse_ncp.solvers.studies.recommendation import RankEvidence, Recommendation, rank_evidence, recommend
from sparse_ncp.solvers.studies.runs import MOST_COMPARED, Descent, Run, comparable, match
from sparse_ncp.solvers.studies.settings import Cell, ComparisonSettings
from sparse_ncp.solvers.studies.state import Choice
from sparse_ncp.solvers.studies.tables import table_notes
from sparse_ncp.solvers.studies.validation import validated
from sparse_ncp.worker.contract import TERMINAL, Axes
from sparse_ncp.worker.errors import NoFactorsYet, NotFound, NothingYet
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.records.studies import RunRecord
from sparse_ncp.worker.store.store import Store
from sparse_ncp.worker.study_contract import Study, StudyRank, StudyRow, StudyTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sparse_ncp.solvers.studies.plots import Labels

PlotName: TypeAlias = Literal["objective", "quality", "path", "choice", "components"]
OF_COMPARISON = ("objective", "quality", "path")
# Models that are compared with each other are held in memory up to this size; more are read again for each comparison.
COMPARED_BYTES = 512 << 20
# Seconds of comparing after which the matches so far are kept: a process that is ended then has not worked in vain.
KEEP_SECONDS = 5.0
# Curves, panels and boxes that fit into a plot.
MOST_CURVES, MOST_PANELS, MOST_BOXES = 300, 24, 200


class FactorsNeeded(Exception):
    """A table that needs matches between runs which were not computed yet."""


class StudyTables:
    """Make the tables and plots of studies.

    Parameters
    ----------
    records, store
        Where the runs and their files are.
    reads_factors : bool, optional
        If False, a table that would have to compare the factors of runs raises FactorsNeeded.
    """

    def __init__(self, records: Records, store: Store, reads_factors: bool = True) -> None:
        self._records = records
        self._store = store
        self._reads_factors = reads_factors
        self._kept_at = time.monotonic()

    # Tables

    def table(self, study: Study, mode: int | None = None) -> StudyTable:
        """Return the table of a comparison, one row per cell, from the runs that have ended so far."""
        return self._tabulate(study, mode)[0]

    def recommendation(self, study: Study, on_progress: Callable[[], None]) -> Recommendation | None:
        """Make the recommendation of a comparison from its table; None if no run has succeeded.

        Parameters
        ----------
        study : Study
            The comparison.
        on_progress : callable
            Called after each cell.
        """
        table, evidence = self._tabulate(study, on_progress=on_progress)
        return recommend(table.rows, evidence, table.mode)

    def _tabulate(
        self, study: Study, mode: int | None = None, on_progress: Callable[[], None] = lambda: None
    ) -> tuple[StudyTable, list[RankEvidence]]:
        """Make the table for a mode, by default that of the reference, else 1, and collect the evidence on ranks."""
        if study.kind != "compare":
            raise NotFound("table", study.id, field="table")
        order = len(self._records.studies.shape(study.id))
        mode = int(mode or (study.request.get("reference") or {}).get("mode", 1))
        if mode > order:
            raise InvalidInput("mode", f"is {mode} for {order} modes", f"count the modes from 1 to {order}")
        grid = self._records.studies.grid(study.id)
        runs = self._runs(study, grid)
        found = self._matches(study, runs, on_progress)
        rows = []
        for place, (cell, own) in enumerate(runs):
            ended = [run for run in own if run.state in ("succeeded", "failed")]
            ratios = [run.measures.psnr for run in ended if run.result is not None and run.measures.psnr is not None]
            rows.append(StudyRow.of(cell, [_as_run(cell, run) for run in ended], mode, found[place], ratios))
        best = {rank: _closest([run for cell, own in runs if cell.rank == rank for run in own]) for rank in grid.ranks}
        core = {rank: run.measures.core_consistency for rank, run in best.items() if run is not None}
        checked = validated(grid.validation, grid.ranks, self._records.studies.checked(study.id))
        evidence = rank_evidence(grid.ranks, checked, core)
        jobs = {rank: None if run is None else run.id for rank, run in best.items()}
        ranks = [StudyRank.of(one, jobs[one.rank]) for one in evidence]
        return StudyTable(mode=mode, rows=tuple(rows), ranks=tuple(ranks), notes=table_notes(rows)), evidence

    def _runs(self, study: Study, grid: ComparisonSettings) -> "CellRuns":
        """Return every cell with its runs, in the order of the grid."""
        found: CellRuns = [(cell, []) for cell in grid.cells]
        for run in self._records.studies.runs(study.id):
            found[run.cell][1].append(run)
        return found

    # Factor matches: in the record for cells whose runs have all ended, else in the store

    def _matches(
        self, study: Study, runs: "CellRuns", on_progress: Callable[[], None] = lambda: None
    ) -> Mapping[int, Sequence[float]]:
        kept = self._records.studies.matches(study.id)
        computed = {} if len(kept) == len(runs) else self._store.rendered.matches(study.id)
        found, ended, before = {}, {}, len(computed)
        for place, (_, own) in enumerate(runs):
            found[place] = kept[place] if place in kept else tuple(self._compared(study.id, own, computed))
            if place in kept or all(run.state in TERMINAL for run in own):
                ended[place] = found[place]
            on_progress()
        if len(computed) > before:
            self._keep(study.id, computed)
        if len(ended) > len(kept) and (len(ended) == len(found) or len(ended) >= 2 * len(kept)):
            self._records.studies.keep_matches(study.id, ended)
        return found

    def _compared(self, study_id: str, runs: Sequence[RunRecord], computed: dict[str, float]) -> list[float]:
        """Return the factor match of every pair of runs that succeeded, and add new ones to those computed before."""
        ids = [run.id for run in runs if run.state == "succeeded"][:MOST_COMPARED]
        pairs = {f"{one} {other}": (one, other) for one, other in combinations(ids, 2)}
        missing = {name: pair for name, pair in pairs.items() if name not in computed}
        if missing and not self._reads_factors:
            raise FactorsNeeded(study_id)
        models: dict[str, list[Float64] | None] = {}
        for name, pair in missing.items():
            if sum(A.nbytes for model in models.values() for A in model or ()) > COMPARED_BYTES:
                models = {id: model for id, model in models.items() if id in pair}
            for id in pair:
                if id not in models:
                    factors = self._factors(id)
                    models[id] = None if factors is None else comparable(factors)
            one, other = (models[id] for id in pair)
            if one is not None and other is not None:
                computed[name] = match(one, other)
            if time.monotonic() > self._kept_at + KEEP_SECONDS:
                self._keep(study_id, computed)
        return [computed[name] for name in pairs if name in computed]

    def _keep(self, study_id: str, computed: Mapping[str, float]) -> None:
        """Keep the matches so far for the next table, where the disk has room."""
        with suppress(OSError):
            self._store.rendered.save_matches(study_id, computed)
        self._kept_at = time.monotonic()

    def _factors(self, id: str) -> tuple[Array, ...] | None:
        """Return the factors of a run; None if it is being deleted."""
        try:
            return tuple(self._store.job(id).factors())
        except (NoFactorsYet, NotFound):
            return None

    # Plots

    def figure(self, study: Study, plot: PlotName, mode: int | None = None) -> "Figure":
        """Draw a plot of the runs that have ended so far; NotFound if this kind of study does not have it."""
        from sparse_ncp.solvers.studies import plots  # matplotlib takes as long to load as the rest of the API

        if (plot in OF_COMPARISON) != (study.kind == "compare") and plot != "components":
            raise NotFound("plot", plot, field="plot")
        if plot == "choice":
            if study.choice is None or study.advice is None:
                raise NothingYet(study.id, "choice")
            return plots.choice(Choice(advice=study.advice, factors=(), **dict(study.choice)))
        if plot == "components":
            best = _closest(self._records.studies.runs(study.id))
            factors = None if best is None else self._factors(best.id)
            if best is None or factors is None:
                raise NothingYet(study.id, "model")
            return plots.components(factors, labels_of(self._records.tensors.axes_of_job(best.id)))
        if plot == "path":
            table = self.table(study, mode)
            return plots.path(table.rows)
        runs = self._runs(study, self._records.studies.grid(study.id))
        if plot == "objective":
            return self._objective(runs)
        reference, cells = study.request.get("reference"), [cell for cell, _ in runs[:MOST_BOXES]]
        if reference is None:
            found = self._matches(study, runs)
            return plots.boxes(cells, [found[place] for place in range(len(cells))], "factor match between repeats")
        values = [[run.measures.psnr for run in own if run.measures.psnr is not None] for _, own in runs[:MOST_BOXES]]
        return plots.boxes(cells, values, f"PSNR of mode {reference['mode']} [dB]")

    def _objective(self, runs: "CellRuns") -> "Figure":
        from sparse_ncp.solvers.studies import plots

        panels = list(dict.fromkeys((cell.rank, cell.beta, cell.sparsity, cell.penalty) for cell, _ in runs))
        shown = set(panels[:MOST_PANELS])
        cells = [(cell, own) for cell, own in runs if (cell.rank, cell.beta, cell.sparsity, cell.penalty) in shown]
        repeats = max(1, MOST_CURVES // len(cells))
        drawn = []
        for cell, run in ((cell, run) for cell, own in cells for run in own):
            if run.state == "succeeded" and run.repeat < repeats:
                rows = self._store.job(run.id).history()
                history = History(
                    tuple(row.objective for row in rows),
                    tuple(row.relative_error for row in rows),
                    tuple(row.seconds for row in rows),
                    tuple(row.start for row in rows),
                )
                drawn.append(Run(cell, run.repeat, descent=Descent.of(history)))
        figure = plots.objective(drawn or [Run(cells[0][0], 0, error="no run has ended")])
        if len(shown) < len(panels):
            figure.suptitle(f"the first {len(shown)} of {len(panels)} combinations")
        return figure


CellRuns: TypeAlias = list[tuple[Cell, list[RunRecord]]]


def labels_of(axes: Axes | None) -> "list[Labels] | None":
    """Return the labels of each mode for plots; None without labels."""
    from sparse_ncp.solvers.studies.plots import Labels

    if axes is None:
        return None
    return [Labels(axis.name if axis.unit is None else f"{axis.name} [{axis.unit}]", axis.values) for axis in axes]


def _as_run(cell: Cell, run: RunRecord) -> Run:
    """Return a run in the form of the solvers, without its factors and history."""
    if run.result is None:
        return Run(cell, run.repeat, error=run.error or "", job_id=run.id)
    return Run.of_numbers(cell, run.repeat, run.result, job_id=run.id)


def _closest(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Return the run with the lowest relative error; None if no run has succeeded."""
    done = [(run.result.relative_error, run) for run in runs if run.state == "succeeded" and run.result is not None]
    return min(done, key=lambda pair: pair[0])[1] if done else None
