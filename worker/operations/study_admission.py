"""Admission of studies: check that every run is possible before any is queued."""

import math
from collections.abc import Iterator

from sparse_ncp.solvers import InvalidInput, ZeroFibres
from sparse_ncp.solvers.runtime import Exclusion, check_mask, without_zero_fibres
from sparse_ncp.solvers.studies.fitting.inputs import LARGEST_SHARE, choice_bytes, thinned
from sparse_ncp.solvers.studies.settings import Validation
from sparse_ncp.solvers.studies.tables import check_reference
from sparse_ncp.solvers.studies.validation import check_validation, observed_entries
from sparse_ncp.worker.contract import LIVE, ZERO_REPORTS, JobRequest, TensorRecord
from sparse_ncp.worker.errors import InvalidJob, NotFound
from sparse_ncp.worker.operations.admission import Inputs, check_job
from sparse_ncp.worker.operations.exclusion import resolve_labels
from sparse_ncp.worker.operations.missing_entries import MOST_SEARCHED
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.store import Store
from sparse_ncp.worker.study_contract import LISTS, ChooseRequest, CompareFields, ReferenceFactor, StabilityRequest

# The limit on runs where none is configured.
MOST_RUNS = 100_000
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
    threads: int,
) -> TensorRecord:
    """Check that every run of a study is possible and within the limits, and return the record of its tensor.

    Raises InvalidJob with all problems, InvalidInput if there are too many runs, ValidationError for an invalid cell of
    the grid, and NotFound.
    """
    if isinstance(request, ChooseRequest):
        tensor = records.tensors.get(owner, request.tensor_id)
        problems = [*_choice_problems(request, tensor, owner, limits, records, store, memory_limit, threads)]
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
        if not problems:
            run = request.run(request.grid.cells[0])
            problems += _validation_problems(request.validation, run, tensor, owner, records, store)
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


def _validation_problems(
    validation: Validation, run: JobRequest, record: TensorRecord, owner: str, records: Records, store: Store
) -> Iterator[InvalidInput]:
    """Yield the problem of a validation; a tensor of moderate size is searched for halves without any reading."""
    if validation == Validation():
        return
    tensor = store.open_tensor(record.sha256)
    settings = resolve_labels(run.settings(), records.tensors.get_labelled(owner, record.id).axes)
    exclusion, observed = Exclusion.of(settings.exclude, tensor.shape), None
    if validation.split_half is not None and tensor.size <= MOST_SEARCHED:
        mask = None
        if run.mask is not None:
            mask = check_mask(store.open_tensor(records.tensors.get(owner, run.mask.tensor_id).sha256), tensor.shape)
        if settings.zeros == "missing":
            reports = ZERO_REPORTS.validate_json(store.zeros(record.sha256) or "[]")
            found = [ZeroFibres(one.mode, one.entries, one.share, one.ratio, one.level) for one in reports]
            mask = without_zero_fibres(tensor, found, mask)
        observed = observed_entries(exclusion.array(tensor), exclusion.mask(mask))
    try:
        check_validation(validation, exclusion.kept_shape, observed, exclusion)
    except InvalidInput as error:
        yield error


def _choice_problems(
    request: ChooseRequest,
    tensor: TensorRecord,
    owner: str,
    limits: Limits,
    records: Records,
    store: Store,
    memory_limit: int,
    threads: int,
) -> Iterator[InvalidInput]:
    try:
        check_job(request.run(), owner, limits, Inputs(records, store), memory_limit)
    except InvalidJob as error:
        for found in error.problems:
            if isinstance(found, NotFound):
                raise found from None
            yield found
        return
    yield from _validation_problems(request.validation, request.run(), tensor, owner, records, store)
    axes = records.tensors.get_labelled(owner, tensor.id).axes
    shape = Exclusion.of(resolve_labels(request.run().settings(), axes).exclude, tensor.shape).kept_shape
    if tensor.negative and request.noise in ("clipped", "counts"):
        problem = f"is {request.noise} for a tensor with negative entries"
        yield InvalidInput("noise", problem, "give auto or gaussian")
    if int(LARGEST_SHARE * (math.prod(shape) - (tensor.missing or 0)) / sum(shape)) < 2:
        remedy = "give one with more entries: even two components would fit its noise"
        yield InvalidInput("tensor_id", "is too small for a choice", remedy)
    needed = choice_bytes(shape, threads)
    if needed > memory_limit:
        problem = f"needs about {needed:,} bytes for a choice; a job may take {memory_limit:,}"
        part = f"upload part of it, such as {thinned(shape, threads, memory_limit)}, which has the same components"
        remedy = f"{part}, or ask the operator to raise NCP_MAX_JOB_MEMORY_BYTES"
        yield InvalidInput("tensor_id", problem, remedy)
