"""Studies with their tables, and plots of studies."""

from dataclasses import dataclass
from typing import Literal

from sparse_ncp.solvers.studies.table_text import to_csv, to_latex
from sparse_ncp.worker.contract import TERMINAL
from sparse_ncp.worker.operations.study_tables import PlotName
from sparse_ncp.worker.rendering.jobs import PlotFormat
from sparse_ncp.worker.rendering.request import Look, Operations, Rendered
from sparse_ncp.worker.study_contract import Study

# Runs up to which a table is made at once, if the matches between them are known: some milliseconds.
LIGHT_RUNS = 50


@dataclass(frozen=True)
class StudyRecord:
    """A study as JSON, a comparison with its table."""

    owner: str
    id: str

    def look(self, operations: Operations) -> Look:
        study = operations.records.studies.get(self.owner, self.id)
        return _look(study, is_light=study.kind != "compare" or study.runs.total <= LIGHT_RUNS)

    def make(self, operations: Operations) -> Rendered:
        study = operations.studies.get(self.owner, self.id)
        return Rendered(study.model_dump_json(exclude={"owner"}).encode())


@dataclass(frozen=True)
class StudyTableFile:
    """The table of a comparison as JSON, CSV or LaTeX."""

    owner: str
    id: str
    format: Literal["json", "csv", "latex"]
    mode: int | None

    def look(self, operations: Operations) -> Look:
        study = operations.records.studies.get(self.owner, self.id)
        return _look(study, is_light=study.runs.total <= LIGHT_RUNS)

    def make(self, operations: Operations) -> Rendered:
        table = operations.studies.tables.table(operations.records.studies.get(self.owner, self.id), self.mode)
        if self.format == "json":
            return Rendered(table.model_dump_json().encode())
        return Rendered((to_csv if self.format == "csv" else to_latex)(table.rows).encode())


@dataclass(frozen=True)
class StudyPlot:
    """A plot of a study."""

    owner: str
    id: str
    plot: PlotName
    format: PlotFormat
    mode: int | None

    def look(self, operations: Operations) -> Look:
        return _look(operations.records.studies.get(self.owner, self.id), is_light=False)

    def make(self, operations: Operations) -> Rendered:
        from sparse_ncp.solvers.studies import plots  # a template process loads matplotlib once

        study = operations.records.studies.get(self.owner, self.id)
        figure = operations.studies.tables.figure(study, self.plot, self.mode)
        return Rendered(plots.render(figure, self.format))


def _look(study: Study, is_light: bool) -> Look:
    """Return a look with the end of a study, after which nothing of it changes."""
    ended = f"{study.state} {study.finished_at}" if study.state in TERMINAL else None
    return Look(inputs=ended, is_light=is_light, revision=f"{study.state} {study.runs} {study.progress}")
