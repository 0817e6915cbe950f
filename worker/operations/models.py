"""Diagnostics and stability of a job's model, its slices next to those of the tensor, and two models side by side."""

import json
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from sparse_ncp.solvers import InvalidInput
from sparse_ncp.solvers.metrics import MatchedComponents, match_components
from sparse_ncp.solvers.runtime import Array, Float64
from sparse_ncp.worker.contract import LIVE, TERMINAL, Job
from sparse_ncp.worker.errors import JobNotFinished, NoDiagnostics, NoFactorsYet, NoStability, NotFound
from sparse_ncp.worker.operations.exclusion import name_index
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


class LeftOut(FrozenModel):
    """The scores of an index that one of two jobs leaves out of its fit, for every pair of components."""

    mode: int = Field(description="counted from 1")
    index: int = Field(description="counted from 0")
    label: int | str = Field(description="its label, or the index: as it can be given to exclude")
    scores: tuple[float | None, ...] = Field(
        description="of this job, in units of the tensor; for its fitted model if it leaves the index out"
    )
    other_scores: tuple[float | None, ...] = Field(description="the same of the other job")


class JobComparison(FrozenModel):
    """Two jobs on tensors of one shape side by side, such as a fit without some samples and the one before."""

    job_id: str
    other_id: str
    relative_error: float = Field(description="each without the indices that its job leaves out")
    other_relative_error: float
    core_consistency: float | None = Field(description="null where the diagnostics have none")
    other_core_consistency: float | None
    components: tuple[MatchedComponents, ...] = Field(
        description="matched by what both jobs have fitted, the largest of this job first; then what only the other has"
    )
    left_out: tuple[LeftOut, ...] = Field(description="indices that one job leaves out, and the other does not")


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
        raise NoDiagnostics(id, "it was cancelled before they were complete", "submit it again, from its factors")

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
            reason = "it was cancelled before that was complete" if job.settings.stability else "it was not requested"
        raise NoStability(id, reason, "start a study of kind stability with its job_id")

    def compare(self, owner: str, id: str, other_id: str) -> JobComparison:
        """Compare the models of two jobs that have ended with factors.

        Raises
        ------
        JobNotFinished
            If one of them is live.
        InvalidInput
            If their tensors have different shapes.
        """
        jobs = self._records.jobs.get(owner, id), _get_other(self._records, owner, other_id)
        factors, results = [], []
        for job in jobs:
            if job.state in LIVE:
                raise JobNotFinished(job.id)
            if job.result is None:
                raise NotFound("factors", job.id)
            results.append(job.result)
            factors.append(self._store.job(job.id).factors())
        shapes = [tuple(map(len, A)) for A in factors]
        if shapes[0] != shapes[1]:
            problem = "has a model of another shape, {} against {}".format(*("×".join(map(str, s)) for s in shapes))
            raise InvalidInput("other", problem, "name a job on a tensor of the same shape")
        excluded = [{(mode, index) for mode, some in result.excluded.items() for index in some} for result in results]
        kept = [
            np.array([(mode, index) not in excluded[0] | excluded[1] for index in range(length)])
            for mode, length in enumerate(shapes[0], start=1)
        ]
        fitted = [[A[rows] for A, rows in zip(model, kept, strict=True)] for model in factors]
        pairs = match_components(*fitted)
        axes = self._records.tensors.axes_of_job(id)
        scores = [
            _scores(model, [getattr(pair, name) for pair in pairs])
            for model, name in zip(factors, ("component", "other"), strict=True)
        ]
        core = [_core_consistency(self._store.job(job.id).diagnostics()) for job in jobs]
        return JobComparison(
            job_id=id,
            other_id=other_id,
            relative_error=results[0].relative_error,
            other_relative_error=results[1].relative_error,
            core_consistency=core[0],
            other_core_consistency=core[1],
            components=pairs,
            left_out=tuple(
                LeftOut(
                    mode=mode,
                    index=index,
                    label=name_index(axes, mode, index),
                    scores=scores[0][mode - 1][index],
                    other_scores=scores[1][mode - 1][index],
                )
                for mode, index in sorted(excluded[0] ^ excluded[1])
            ),
        )

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


def _get_other(records: Records, owner: str, id: str) -> Job:
    try:
        return records.jobs.get(owner, id)
    except NotFound as error:
        raise NotFound("job", id, "other") from error


def _scores(factors: Sequence[Array], components: Sequence[int | None]) -> list[list[tuple[float | None, ...]]]:
    """Return the loadings of these components for every mode and index, with all other modes of unit length."""
    norms = [np.linalg.norm(A.astype(np.float64), axis=0) for A in factors]
    scores = []
    for mode, A in enumerate(factors):
        scale: Float64 = np.prod([norm for other, norm in enumerate(norms) if other != mode], axis=0)
        rows = (A.astype(np.float64) * scale).tolist()
        scores.append([tuple(None if one is None else row[one - 1] for one in components) for row in rows])
    return scores


def _core_consistency(diagnostics: bytes | None) -> float | None:
    found: float | None = None if diagnostics is None else json.loads(diagnostics)["core_consistency"]
    return found
