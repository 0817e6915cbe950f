"""Diagnostics and stability of a job's model, and its slices next to those of the tensor."""

from pydantic import Field

from sparse_ncp.worker.contract import LIVE, TERMINAL
from sparse_ncp.worker.errors import JobNotFinished, NoDiagnostics, NoFactorsYet, NoStability, NotFound
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
        if job.state != "succeeded":
            ended = "failed" if job.state == "failed" else "was cancelled"
            raise NoDiagnostics(id, f"it {ended}", "submit it again")
        found = self._store.job(id).diagnostics()
        if found is not None:
            return found
        if not job.settings.diagnose:
            raise NoDiagnostics(id, "it ran without diagnose", "submit it again with diagnose, from its factors")
        raise NoDiagnostics(id, "it was cancelled while they were computed", "submit it again, from its factors")

    def stability(self, owner: str, id: str) -> bytes:
        """Return the stability as JSON; raise JobNotFinished or NoStability if there is none."""
        job = self._records.jobs.get(owner, id)
        if job.state in LIVE:
            raise JobNotFinished(id)
        found = self._store.job(id).stability()
        if found is not None:
            return found
        reason = f"it {'failed' if job.state == 'failed' else 'was cancelled'}"
        if job.state == "succeeded":
            reason = "it was cancelled while that was assessed" if job.settings.stability else "it was not asked for"
        raise NoStability(id, reason, "start a study of kind stability with its job_id")

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
        try:
            stored = self._records.tensors.get(owner, job.tensor_id)
            masked = None if job.mask is None else self._records.tensors.get(owner, job.mask.tensor_id)
            mask = None if masked is None else self._store.open_tensor(masked.sha256)
            tensor = spec.entries(self._store.open_tensor(stored.sha256), mask)
        except NotFound:  # one of them was deleted
            tensor = None
        return ModelSlice(
            modes=tuple(mode for mode, index in enumerate(spec.indices, start=1) if isinstance(index, slice)),
            model=spec.slice(model),
            tensor=None if tensor is None else spec.slice(tensor),
            residual=None if tensor is None else spec.slice(tensor - model),
        )
