"""Whether a job can run at all, told before anything is queued."""

from typing import Any

from numpy.typing import NDArray

from solvers import Settings, estimate_memory
from solvers.door import check_norm, working_precision
from solvers.problem import resolve
from worker.contract import JobRequest
from worker.errors import DoesNotFit, NotFound
from worker.limits import Limits
from worker.records import Records
from worker.store import Store


def check_fit(request: JobRequest, owner: str, records: Records, store: Store, memory_limit: int) -> None:
    """The tensor and the initial job are the caller's; modes, rank and memory fit. Reads no entry of the tensor."""
    record = records.tensor(owner, request.tensor_id)
    tensor = store.open_tensor(record.sha256)
    settings = request.settings()
    check_norm(record.norm, working_precision(tensor, settings.precision))
    resolve(settings, tensor.ndim)
    _check_memory(tensor, settings, memory_limit)
    if request.initial is not None:
        _check_initial(store, _own_job(records, owner, request.initial.job_id), tensor.shape, request.rank)


def _own_job(records: Records, owner: str, job_id: str) -> str:
    try:
        return records.job(owner, job_id).id
    except NotFound as error:
        raise NotFound("job", job_id, field="initial.job_id") from error


def check_limits(request: JobRequest, limits: Limits) -> None:
    """What the caller may ask of one job."""
    seconds, ceiling = request.stop.max_seconds, limits.job_seconds
    if limits.rank is not None and request.rank > limits.rank:
        problem = f"{request.rank} is over your limit of {limits.rank}"
        raise DoesNotFit("rank", problem, "lower the rank, or ask the operator for a higher limit")
    if seconds is not None and ceiling is not None and seconds > ceiling:
        problem = f"{seconds:g} is over your limit of {ceiling:g}"
        raise DoesNotFit("stop.max_seconds", problem, "lower it, leave it out, or ask the operator for a higher limit")


def _check_memory(tensor: NDArray[Any], settings: Settings, limit: int) -> None:
    needed = estimate_memory(tensor, settings).total
    if needed <= limit:
        return
    problem = f"{settings.rank} needs about {needed:,} bytes beside the tensor; a job may take {limit:,}"
    raise DoesNotFit("rank", problem, "lower the rank, or ask the operator to raise NCP_MAX_JOB_MEMORY_BYTES")


def _check_initial(store: Store, job_id: str, shape: tuple[int, ...], rank: int) -> None:
    found = [A.shape for A in store.job(job_id).factors()]
    wanted = [(length, rank) for length in shape]
    if found != wanted:
        problem = f"has factors of shapes {_told(found)}, this job needs {_told(wanted)}"
        raise DoesNotFit("initial.job_id", problem, "name a job of the same shape and rank")


def _told(shapes: list[Any]) -> str:
    return ", ".join("×".join(map(str, shape)) for shape in shapes)
