"""Diagnostics of a job's model, and its slices next to those of the tensor."""

from typing import Any

from numpy.typing import NDArray
from pydantic import Field

from sparse_ncp.solvers.runtime import Booleans
from sparse_ncp.worker.contract import LIVE, TERMINAL, Job
from sparse_ncp.worker.errors import JobNotFinished, NoDiagnostics, NoFactorsYet, NotFound
from sparse_ncp.worker.operations.slices import Slice, SliceSpec
from sparse_ncp.worker.owner_limits import FrozenModel
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.store import Store


class ModelSlice(FrozenModel):
    """A slice of the model, of the tensor, and of their difference."""

    modes: tuple[int, ...] = Field(description="modes of the slice, counted from 1")
    model: Slice
    tensor: Slice | None = Field(description="null if the tensor or its mask was deleted")
    residual: Slice | None


class ModelOperations:
    """Read the model of a job."""

    def __init__(self, records: Records, store: Store) -> None:
        self._records = records
        self._store = store

    def diagnostics(self, owner: str, id: str) -> bytes:
        """Return the diagnostics as JSON; raise JobNotFinished or NoDiagnostics if there are none."""
        job = self._records.jobs.get(owner, id)
        if job.state in LIVE:
            raise JobNotFinished(id)
        found = self._store.job(id).diagnostics() if job.state == "succeeded" else None
        if found is None:
            raise _no_diagnostics(job)
        return found

    def slice(self, owner: str, id: str, fix: str, max_length: int) -> ModelSlice:
        """Return a slice of the model; while the job runs, of its last checkpoint."""
        job = self._records.jobs.get(owner, id)
        try:
            factors = self._store.job(id).factors()
        except NoFactorsYet as error:
            if job.state in TERMINAL:
                raise NotFound("factors", id) from error
            raise
        spec = SliceSpec.parse(fix, [len(A) for A in factors], max_length)
        model = spec.model(factors)
        found = self._entries(owner, job)
        tensor = None if found is None else spec.entries(*found)
        return ModelSlice(
            modes=tuple(mode for mode, index in enumerate(spec.indices, start=1) if isinstance(index, slice)),
            model=spec.slice(model),
            tensor=None if tensor is None else spec.slice(tensor),
            residual=None if tensor is None else spec.slice(tensor - model),
        )

    def _entries(self, owner: str, job: Job) -> tuple[NDArray[Any], Booleans | None] | None:
        """Open the tensor and its mask; return None if either was deleted."""
        try:
            tensor = self._records.tensors.get(owner, job.tensor_id)
            mask = None if job.mask is None else self._records.tensors.get(owner, job.mask.tensor_id)
            opened = None if mask is None else self._store.open_tensor(mask.sha256)
            return self._store.open_tensor(tensor.sha256), opened
        except NotFound:
            return None


def _no_diagnostics(job: Job) -> NoDiagnostics:
    """Return the exception that says why a finished job has no diagnostics."""
    if job.state != "succeeded":
        return NoDiagnostics(job.id, f"it {'failed' if job.state == 'failed' else 'was cancelled'}", "submit it again")
    if not job.settings.diagnose:
        return NoDiagnostics(job.id, "it ran without diagnose", "submit it again with diagnose, from its factors")
    return NoDiagnostics(job.id, "it was cancelled while they were computed", "submit it again, from its factors")
