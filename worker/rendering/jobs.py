"""Factors, plots and slices of the model of a job."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sparse_ncp.solvers import History
from sparse_ncp.worker.contract import Export
from sparse_ncp.worker.errors import NoFactorsYet, NotFound
from sparse_ncp.worker.operations.study_tables import labels_of
from sparse_ncp.worker.rendering.request import LIGHT_BYTES, Look, Operations, Rendered
from sparse_ncp.worker.store.blobs import OpenFile

PlotFormat: TypeAlias = Literal["svg", "png", "pdf"]
ALL = "factors.npz"


@dataclass(frozen=True)
class FactorsFile:
    """A file of factors in the form in which jobs store them: `factors.npz`, `factors.mat` or `A1.npy` …"""

    owner: str
    id: str
    name: str

    def look(self, operations: Operations) -> Look:
        return Look(ready=operations.jobs.open_published_factors(self.owner, self.id, self.name))

    def make(self, operations: Operations) -> OpenFile:
        return operations.jobs.open_factors(self.owner, self.id, self.name)


@dataclass(frozen=True)
class FactorsExport:
    """Factors in another format, scale or order."""

    owner: str
    id: str
    asked: Export

    def look(self, operations: Operations) -> Look:
        return Look(inputs=_digest_of_factors(self.owner, self.id, operations))

    def make(self, operations: Operations) -> Rendered:
        return Rendered(*operations.jobs.export(self.owner, self.id, self.asked))


@dataclass(frozen=True)
class JobPlot:
    """A plot of the convergence or the components of a job."""

    owner: str
    id: str
    plot: Literal["convergence", "components"]
    format: PlotFormat

    def look(self, operations: Operations) -> Look:
        if self.plot == "components":
            return Look(inputs=_digest_of_factors(self.owner, self.id, operations))
        job = operations.records.jobs.get(self.owner, self.id)
        return Look(inputs=f"{job.state} {job.progress.iteration if job.progress else 0}")

    def make(self, operations: Operations) -> Rendered:
        from sparse_ncp.solvers.studies import plots  # a template process loads matplotlib once

        jobs = operations.jobs
        if self.plot == "components":
            figure = plots.components(jobs.factors(self.owner, self.id), labels_of(jobs.axes(self.owner, self.id)))
        else:
            pages = jobs.history_pages(self.owner, self.id)
            rows = [(row.objective, row.relative_error, row.seconds, row.start) for page in pages for row in page]
            figure = plots.convergence(History(*zip(*rows, strict=True)))
        return Rendered(plots.render(figure, self.format))


@dataclass(frozen=True)
class ModelSlice:
    """A slice of the model of a job, of its tensor and of the residual, as JSON."""

    owner: str
    id: str
    fix: str
    most: int

    def look(self, operations: Operations) -> Look:
        job = operations.records.jobs.get(self.owner, self.id)
        manifest = operations.jobs.published_factors(self.owner, self.id)
        if manifest is None or manifest.files[ALL].nbytes > LIGHT_BYTES:
            return Look()
        try:
            return Look(is_light=operations.records.tensors.get(self.owner, job.tensor_id).nbytes <= LIGHT_BYTES)
        except NotFound:  # it was deleted
            return Look(is_light=True)

    def make(self, operations: Operations) -> Rendered:
        found = operations.models.slice(self.owner, self.id, self.fix, self.most)
        return Rendered(found.model_dump_json().encode())


@dataclass(frozen=True)
class ModelComparison:
    """The models of two jobs side by side, as JSON."""

    owner: str
    id: str
    other: str

    def look(self, operations: Operations) -> Look:
        found = []
        with suppress(NotFound, NoFactorsYet):  # which `make` reports with the field that is wrong
            found = [operations.jobs.published_factors(self.owner, id) for id in (self.id, self.other)]
        return Look(is_light=all(one is not None and one.files[ALL].nbytes <= LIGHT_BYTES for one in found))

    def make(self, operations: Operations) -> Rendered:
        found = operations.models.compare(self.owner, self.id, self.other)
        return Rendered(found.model_dump_json().encode())


def _digest_of_factors(owner: str, id: str, operations: Operations) -> str | None:
    manifest = operations.jobs.published_factors(owner, id)
    return None if manifest is None else f"{manifest.files[ALL].sha256} {manifest.about['iteration']}"
