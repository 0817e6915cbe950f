"""Check before a job is queued whether it can run, and report all problems at once."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from sparse_ncp.solvers import METHODS, InvalidInput, Settings, estimate_memory
from sparse_ncp.solvers.runtime import (
    Booleans,
    Exclusion,
    Number,
    Whole,
    check_fixed,
    check_mask,
    check_mode,
    check_norm,
    check_stability,
    per_mode,
    rank_advice,
    working_precision,
)
from sparse_ncp.worker.contract import (
    LIVE,
    Axes,
    FixedModel,
    Id,
    InitialJob,
    Job,
    JobRequest,
    MaskTensor,
    TensorRecord,
)
from sparse_ncp.worker.errors import InvalidJob, NoFactorsYet, NotFound
from sparse_ncp.worker.operations.exclusion import resolve_labels
from sparse_ncp.worker.operations.missing_entries import unread_problems
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.store import Store

Answer = TypeVar("Answer")
Problem: TypeAlias = InvalidInput | NotFound | NoFactorsYet
AWAIT_CHECKPOINT = "wait for its first checkpoint, or name another job"
FIX_EQUAL_MODES = "fix modes only that are the same in both tensors"
# Noise around zero makes some entries negative; a larger share suggests that the data were transformed.
MANY_NEGATIVE = 0.05


class Assessment(NamedTuple):
    """Problems of a request, the memory that its job needs besides the tensor (None if unknown), and warnings."""

    problems: list[Problem]
    memory_bytes: int | None
    warnings: tuple[str, ...] = ()


class Inputs:
    """Records and files that requests name, each read once even if several requests name it."""

    def __init__(self, records: Records, store: Store) -> None:
        self.records = records
        self.store = store
        self._found: dict[str, TensorRecord | None] = {}
        self._opened: dict[str, NDArray[Any]] = {}

    def fetch_tensors(self, ids: Iterable[str]) -> None:
        """Read these records in one round trip."""
        wanted = dict.fromkeys(ids)
        self._found.update(wanted | self.records.tensors.find(wanted))

    def tensor(self, owner: str, id: str) -> TensorRecord:
        """Return the record of a tensor; raise NotFound if there is none or it belongs to another owner."""
        if id not in self._found:
            self.fetch_tensors([id])
        found = self._found[id]
        if found is None or found.owner != owner:
            raise NotFound("tensor", id)
        return found

    def open_tensor(self, sha256: str) -> NDArray[Any]:
        """Open a tensor as a read-only memory map."""
        if sha256 not in self._opened:
            self._opened[sha256] = self.store.open_tensor(sha256)
        return self._opened[sha256]


def check_job(request: JobRequest, owner: str, limits: Limits, inputs: Inputs, memory_limit: int) -> tuple[str, ...]:
    """Refuse a job that cannot run or exceeds a limit, without reading the entries; return warnings about others.

    Raises
    ------
    InvalidJob
        With all problems.
    NotFound, NoFactorsYet
        If there are no other problems.
    """
    problems, _, warnings = assess(request, owner, limits, inputs, memory_limit)
    if not problems:
        return warnings
    missing = [problem for problem in problems if isinstance(problem, NotFound)]
    if len(missing) == len(problems):
        first, *others = missing
        raise NotFound(first.kind, first.id, first.field, others)
    if len(problems) == 1 and isinstance(problems[0], NoFactorsYet):
        raise problems[0]
    raise InvalidJob(with_fields(problems))


def assess(request: JobRequest, owner: str, limits: Limits, inputs: Inputs, memory_limit: int) -> Assessment:
    """Return all problems of a request, and the memory that its job needs."""
    problems: list[Problem] = [*_limit_problems(request.rank, request.stop.max_seconds, limits)]
    tensor = _collect(problems, lambda: inputs.tensor(owner, request.tensor_id))
    named = _find_named(problems, request, owner, inputs)
    needed: int | None = None
    warnings: tuple[str, ...] = ()
    if tensor is not None:
        fit, needed, warnings = _fit_problems(request, tensor, named, inputs, memory_limit)
        problems += fit
    if tensor is not None and named.fixed is not None and request.fixed is not None:
        labels = inputs.records.tensors
        ours, theirs = labels.get_labelled(owner, tensor.id).axes, labels.axes_of_job(named.fixed.id)
        problems += _label_problems(request.fixed.modes, ours, theirs)
    return Assessment(problems, needed, warnings)


def problems_of_invalid(body: object, owner: str, limits: Limits, inputs: Inputs) -> list[Problem]:
    """Return further problems of a body that the schema has refused, as far as its valid fields show them."""
    if not isinstance(body, Mapping):
        return []
    partial = PartialRequest.model_validate(body)
    max_seconds, tensor_id = partial.stop.max_seconds if partial.stop else None, partial.tensor_id
    problems: list[Problem] = [*_limit_problems(partial.rank, max_seconds, limits)]
    if tensor_id is not None:
        _collect(problems, lambda: inputs.tensor(owner, tensor_id))
    _find_named(problems, partial, owner, inputs)
    return problems


def _or_none(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    try:
        return validate(value)
    except ValidationError:
        return None


OrNone = WrapValidator(_or_none)


class PartialStop(BaseModel):
    """The fields of `stop` that can be checked by themselves."""

    max_seconds: Annotated[Number | None, OrNone] = None


class PartialRequest(BaseModel):
    """The fields of a request that can be checked by themselves; None for a missing or invalid one."""

    tensor_id: Annotated[Id | None, OrNone] = None
    rank: Annotated[Whole | None, OrNone] = None
    stop: Annotated[PartialStop | None, OrNone] = None
    initial: Annotated[InitialJob | None, OrNone] = None
    mask: Annotated[MaskTensor | None, OrNone] = None
    fixed: Annotated[FixedModel | None, OrNone] = None


class NamedInputs(NamedTuple):
    """Inputs that a request names besides its tensor; None for those not named or not found."""

    initial: Job | None
    mask: TensorRecord | None
    fixed: Job | None


def _collect(problems: list[Problem], find: Callable[[], Answer]) -> Answer | None:
    """Call `find`; on failure, append the exception to the problems and return None."""
    try:
        return find()
    except (InvalidInput, NotFound, NoFactorsYet) as error:
        problems.append(error)
        return None


def _find_named(
    problems: list[Problem], request: JobRequest | PartialRequest, owner: str, inputs: Inputs
) -> NamedInputs:
    def job(field: str, named: InitialJob | FixedModel | None) -> Job | None:
        if named is None:
            return None
        return _in_field(f"{field}.job_id", lambda: inputs.records.jobs.get(owner, named.job_id))

    def tensor(field: str, named: MaskTensor | None) -> TensorRecord | None:
        if named is None:
            return None
        return _in_field(f"{field}.tensor_id", lambda: inputs.tensor(owner, named.tensor_id))

    return NamedInputs(
        initial=_collect(problems, lambda: job("initial", request.initial)),
        mask=_collect(problems, lambda: tensor("mask", request.mask)),
        fixed=_collect(problems, lambda: job("fixed", request.fixed)),
    )


def _in_field(field: str, find: Callable[[], Answer]) -> Answer:
    """Call `find`, and attribute its exceptions to this field."""
    try:
        return find()
    except NotFound as error:
        raise NotFound(error.kind, error.id, field) from error
    except InvalidInput as error:
        raise InvalidInput(field, error.problem, error.remedy) from error


def _limit_problems(rank: int | None, max_seconds: float | None, limits: Limits) -> Iterator[InvalidInput]:
    """Yield the fields that exceed the limits of the caller."""
    if rank is not None and limits.rank is not None and rank > limits.rank:
        problem = f"{rank} is over your limit of {limits.rank}"
        yield InvalidInput("rank", problem, "lower the rank, or ask the operator for a higher limit")
    if max_seconds is not None and limits.job_seconds is not None and max_seconds > limits.job_seconds:
        problem = f"{max_seconds:g} is over your limit of {limits.job_seconds:g}"
        remedy = "lower it, leave it out, or ask the operator for a higher limit"
        yield InvalidInput("stop.max_seconds", problem, remedy)


def _fit_problems(
    request: JobRequest, record: TensorRecord, named: NamedInputs, inputs: Inputs, memory_limit: int
) -> Assessment:
    """Find what does not fit the tensor, or the memory that a job may use."""
    problems: list[Problem] = []
    tensor = _collect(problems, lambda: inputs.open_tensor(record.sha256))
    if tensor is None:
        return Assessment(problems, None)
    settings = request.settings()
    mask = _collect(problems, lambda: _mask(named.mask, tensor.shape, inputs))
    _collect(problems, lambda: check_mode(settings.samples_mode, tensor.ndim))
    exclusion = None
    if settings.exclude is not None:
        axes = inputs.records.tensors.get_labelled(record.owner, record.id).axes
        resolved = _collect(problems, lambda: resolve_labels(settings, axes))
        settings = settings.model_copy(update={"exclude": None}) if resolved is None else resolved
        exclusion = _collect(problems, lambda: Exclusion.of(settings.exclude, tensor.shape))
        if exclusion is None:
            settings = settings.model_copy(update={"exclude": None})
    kept = exclusion or Exclusion.of(None, tensor.shape)
    problems += unread_problems(tensor, record, mask, kept, settings.missing == "nan")
    if request.mask is None and not exclusion:  # which entries these leave is only known during the run
        problems += _entry_problems(record, tensor.size, settings)
        _collect(problems, lambda: check_norm(record.norm, working_precision(tensor, settings.precision)))
    _collect(problems, lambda: per_mode("alpha", settings.alpha, tensor.ndim))
    _collect(problems, lambda: per_mode("beta", settings.beta, tensor.ndim))
    needed = estimate_memory(tensor, settings, mask=mask, missing=record.missing).total
    if needed > memory_limit:
        problem = f"{settings.rank} needs about {needed:,} bytes beside the tensor; a job may take {memory_limit:,}"
        remedy = "lower the rank, or ask the operator to raise NCP_MAX_JOB_MEMORY_BYTES"
        problems.append(InvalidInput("rank", problem, remedy))
    if (initial := named.initial) is not None:
        factors = _collect(problems, lambda: inputs.store.job(initial.id).factors())
        if factors is not None and (lengths := tuple(map(len, factors))) != tensor.shape:  # the rank may differ
            theirs, ours = ("×".join(map(str, shape)) for shape in (lengths, tensor.shape))
            problem = f"has factors for a tensor of {theirs}, this one is {ours}"
            problems.append(InvalidInput("initial.job_id", problem, "name a job on a tensor of the same shape"))
    if request.fixed is not None:
        problems += _fixed_problems(settings, request.fixed.modes, named.fixed, tensor, inputs.store)
    if settings.stability and settings.samples_mode <= tensor.ndim:
        modes = () if request.fixed is None else request.fixed.modes
        _collect(
            problems,
            lambda: check_stability(settings.samples_mode, exclusion.kept_shape if exclusion else tensor.shape, modes),
        )
    observed = tensor.size - record.missing if settings.missing == "nan" else tensor.size
    too_many = rank_advice(tensor.shape, settings.rank, observed)
    return Assessment(problems, needed, () if too_many is None else (too_many,))


def _mask(record: TensorRecord | None, shape: tuple[int, ...], inputs: Inputs) -> Booleans | None:
    if record is None:
        return None
    return _in_field("mask.tensor_id", lambda: check_mask(inputs.open_tensor(record.sha256), shape))


def _entry_problems(record: TensorRecord, size: int, settings: Settings) -> Iterator[InvalidInput]:
    """Yield problems with entries whose treatment the request does not specify."""
    if record.missing and settings.missing == "refuse":
        problem = f"{_describe_count(record.missing, size)} NaN, and the job does not say what that means"
        yield InvalidInput(
            "missing", problem, 'give "nan" if they were not observed, or upload the tensor without them'
        )
    if record.max <= 0:
        yield InvalidInput("tensor_id", "no entry is positive", "nonnegative components fit positive entries only")
    elif record.negative and settings.negative == "refuse":
        problem = f"{_describe_count(record.negative, size)} negative, the least is {record.min:.6g}"
        method = "" if METHODS[settings.method].signed else f", with another method than {settings.method}"
        zeros = "upload the tensor with zeros in their place, as sparse_ncp.clip makes it"
        remedy = f'give "keep" to fit them as they are{method}, or {zeros}'
        if record.negative > MANY_NEGATIVE * size:
            problem += "; is the tensor log-scaled or centred?"
            remedy = f"if so, undo that before the upload; if not, {remedy}"
        yield InvalidInput("negative", problem, remedy)


def _describe_count(count: int, size: int) -> str:
    """Describe a number of entries and their share, as in "12 of 1,000 entries (1.2 %) are"."""
    return f"{count:,} of {size:,} entries ({float(f'{100 * count / size:.2g}'):g} %) {'is' if count == 1 else 'are'}"


def _fixed_problems(
    settings: Settings, modes: Sequence[int], fixed: Job | None, tensor: NDArray[Any], store: Store
) -> Iterator[InvalidInput]:
    """Yield reasons why these modes cannot be fixed, and why the factors do not fit the tensor or the settings."""
    rank, shape = settings.rank, tensor.shape
    if max(modes) > len(shape):
        yield InvalidInput("fixed.modes", f"has a mode {max(modes)}", f"count the modes from 1 to {len(shape)}")
        modes = ()
    elif len(modes) == len(shape):
        yield InvalidInput("fixed.modes", "names every mode", "leave out those that are to be fitted")
        modes = ()
    if fixed is None:
        return
    if fixed.state in LIVE:
        yield InvalidInput("fixed.job_id", "is queued or running: its factors still change", "wait until it has ended")
        return
    try:
        factors = store.job(fixed.id).factors()
    except (NoFactorsYet, NotFound):
        yield InvalidInput("fixed.job_id", "ended without factors", "name a job that has some")
        return
    found = factors[0].shape[1]
    if len(factors) != len(shape):
        problem = f"has {len(factors)} modes, this tensor {len(shape)}"
        yield InvalidInput("fixed.job_id", problem, "name a job on a tensor of the same order")
        return
    if found != rank:
        yield InvalidInput("rank", f"{rank} is not that of the fixed model, {found}", f"give {found}")
    kept = {mode: factors[mode - 1] for mode in modes}
    others = [mode for mode, factor in kept.items() if len(factor) != shape[mode - 1]]
    for mode in others:
        problem = f"mode {mode} has a length of {len(kept[mode])} there, {shape[mode - 1]} here"
        yield InvalidInput("fixed.modes", problem, FIX_EQUAL_MODES)
    if found != rank or others or not kept:
        return
    try:
        check_fixed(kept, shape, settings, working_precision(tensor, settings.precision))
    except InvalidInput as error:
        field = "fixed.modes" if error.field.startswith("fixed") else error.field
        yield InvalidInput(field, error.problem, error.remedy)


def _label_problems(modes: Sequence[int], ours: Axes | None, theirs: Axes | None) -> Iterator[InvalidInput]:
    """Yield fixed modes whose labels differ from those of the model, with the first difference of each."""
    for mode in modes:
        if ours is None or theirs is None or mode > min(len(ours), len(theirs)):
            continue
        here, there = ours[mode - 1], theirs[mode - 1]
        pairs = enumerate(zip(there.values, here.values, strict=False))
        differing = next((f"has {t} at index {index} there, {h} here" for index, (t, h) in pairs if t != h), None)
        if here.unit != there.unit and None not in (here.unit, there.unit):
            differing = f"is in {there.unit} there, in {here.unit} here"
        elif len(here.values) != len(there.values):  # reported with the shapes
            differing = None
        if differing is not None:
            yield InvalidInput("fixed.modes", f"mode {mode} {differing}", f"{FIX_EQUAL_MODES}, or label them alike")


def with_fields(problems: Sequence[Problem]) -> list[InvalidInput | NotFound]:
    """Return the problems, each with the field it concerns."""
    return [
        InvalidInput("initial.job_id", str(problem), AWAIT_CHECKPOINT) if isinstance(problem, NoFactorsYet) else problem
        for problem in problems
    ]
