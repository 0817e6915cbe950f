"""Admission of studies: check that every run is possible before any is queued."""

import math
from collections.abc import Iterator

from sparse_ncp.solvers import InvalidInput
from sparse_ncp.solvers.studies.fitting.inputs import LARGEST_SHARE
from sparse_ncp.solvers.studies.settings import Validation
from sparse_ncp.solvers.studies.tables import check_reference
from sparse_ncp.solvers.studies.validation import check_validation
from sparse_ncp.worker.contract import LIVE, JobRequest, TensorRecord
from sparse_ncp.worker.errors import InvalidJob, NotFound
from sparse_ncp.worker.operations.admission import Inputs, check_job, describe_count, limit_problems
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.store import Store
from sparse_ncp.worker.study_contract import LISTS, ChooseRequest, CompareFields, ReferenceFactor, StabilityRequest

# The limit on runs where none is configured.
MOST_RUNS = 100_000
# A choice keeps this many copies of its tensor in double precision.
COPIES = 10
FEWER = "give fewer ranks, methods, weights or repeats, or ask the operator for a higher limit"


def stability_run(request: StabilityRequest, owner: str, records: Records) -> JobRequest:
    """Return the run that assesses a job; raise InvalidInput or NotFound if the job cannot be assessed."""
    try:
        job = records.jobs.get(owner, request.job_id)
    except NotFound as error:
        raise NotFound("job", request.job_id, "job_id") from error
    if job.state in LIVE:
        raise InvalidInput("job_id", "is queued or running: its factors still change", "wait until it has ended")
    if job.tensor_id != request.tensor_id:
        raise InvalidInput("job_id", "is of another tensor", f"give tensor_id {job.tensor_id}")
    return request.run(job)


def check_study(
    request: CompareFields | ChooseRequest,
    owner: str,
    limits: Limits,
    records: Records,
    store: Store,
    memory_limit: int,
) -> TensorRecord:
    """Check that every run of a study is possible and within the limits, and return the record of its tensor.

    Raises InvalidJob with all problems, InvalidInput if there are too many runs, ValidationError for an invalid cell of
    the grid, and NotFound.
    """
    if isinstance(request, ChooseRequest):
        tensor = records.tensors.get(owner, request.tensor_id)
        problems = [*_choice_problems(request, tensor, limits, memory_limit)]
    else:
        limit = min(limits.study_runs or MOST_RUNS, limits.live_runs or MOST_RUNS, MOST_RUNS)
        if request.count > limit:  # before the grid is expanded
            cells = request.count // request.repeats
            problem = f"{cells:,} cells × {request.repeats:,} make {request.count:,} runs, over your limit of {limit:,}"
            raise InvalidInput("repeats", problem, FEWER)
        problems = [*_run_problems(request, owner, limits, records, store, memory_limit)]
        tensor = records.tensors.get(owner, request.tensor_id)
        if request.reference is not None:
            problems += _reference_problems(request.reference, tensor, owner, records, store)
        hidden = bool(tensor.missing) or request.run_has_mask
        if request.validation != Validation() and (hidden or tensor.negative):
            problem = "goes with complete, nonnegative tensors only"
            problems.append(
                InvalidInput("validate", problem, "leave it out, or upload the tensor without such entries")
            )
        elif request.validation != Validation():
            try:
                check_validation(request.validation, tensor.shape)
            except InvalidInput as error:
                problems.append(error)
    if problems:
        raise InvalidJob(problems)
    return tensor


def _run_problems(
    request: CompareFields, owner: str, limits: Limits, records: Records, store: Store, memory_limit: int
) -> Iterator[InvalidInput]:
    """Yield the problems of all runs, each once, at the fields of the study."""
    cells, largest, inputs = request.grid.cells, max(request.ranks), Inputs(records, store)
    has_fixed = request.run(cells[0]).fixed is not None
    checked, seen = set[str | int](), set[tuple[str, str]]()
    for cell in cells:
        # The largest rank with every method has the problems of all others; so has every rank if factors are fixed.
        place = cell.rank if has_fixed else cell.method
        if place in checked or not (has_fixed or cell.rank == largest):
            continue
        checked.add(place)
        try:
            check_job(request.run(cell), owner, limits, inputs, memory_limit)
        except InvalidJob as error:
            for problem in error.problems:
                if isinstance(problem, NotFound):
                    raise problem from None
                first, _, rest = problem.field.partition(".")
                field = f"{LISTS.get(first, first)}{'.' if rest else ''}{rest}"
                if (field, problem.problem) not in seen:
                    seen.add((field, problem.problem))
                    yield InvalidInput(field, problem.problem, problem.remedy)


def _reference_problems(
    reference: ReferenceFactor, tensor: TensorRecord, owner: str, records: Records, store: Store
) -> Iterator[InvalidInput]:
    try:
        record = records.tensors.get(owner, reference.tensor_id)
    except NotFound as error:
        raise NotFound("tensor", reference.tensor_id, "reference.tensor_id") from error
    try:
        check_reference(store.open_tensor(record.sha256), tensor.shape, reference.mode)
    except InvalidInput as error:
        field = "reference.mode" if error.field == "mode" else "reference.tensor_id"
        yield InvalidInput(field, error.problem, error.remedy)
    if record.missing:
        yield InvalidInput("reference.tensor_id", "has entries that are NaN", "give a factor that is known")


def _choice_problems(
    request: ChooseRequest, tensor: TensorRecord, limits: Limits, memory_limit: int
) -> Iterator[InvalidInput]:
    size = math.prod(tensor.shape)
    yield from limit_problems(request.rank, request.stop.max_seconds, limits)
    if tensor.missing and request.missing == "refuse":
        remedy = "say that NaN means not observed with missing 'nan'"
        yield InvalidInput("tensor_id", f"{describe_count(tensor.missing, size)} NaN", remedy)
    if tensor.negative and request.negative == "refuse":
        remedy = "fit them as they are with negative 'keep'"
        yield InvalidInput("tensor_id", f"{describe_count(tensor.negative, size)} negative", remedy)
    if tensor.negative and request.noise in ("clipped", "counts"):
        problem = f"is {request.noise} for a tensor with negative entries"
        yield InvalidInput("noise", problem, "give auto or gaussian")
    if request.samples_mode > len(tensor.shape):
        problem = f"is {request.samples_mode} for {len(tensor.shape)} modes"
        yield InvalidInput("samples_mode", problem, f"count the modes from 1 to {len(tensor.shape)}")
    try:
        check_validation(request.validation, tensor.shape)
    except InvalidInput as error:
        yield error
    if tensor.max <= 0:
        yield InvalidInput("tensor_id", "no entry is positive", "nonnegative components fit positive entries only")
    if int(LARGEST_SHARE * (size - (tensor.missing or 0)) / sum(tensor.shape)) < 2:
        remedy = "give one with more entries: even two components would fit its noise"
        yield InvalidInput("tensor_id", "is too small for a choice", remedy)
    needed = COPIES * 8 * size
    if needed > memory_limit:
        problem = f"needs about {needed:,} bytes for a choice; a job may take {memory_limit:,}"
        yield InvalidInput(
            "tensor_id", problem, "compare ranks instead, or ask the operator to raise NCP_MAX_JOB_MEMORY_BYTES"
        )
