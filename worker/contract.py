"""Types that are exchanged between processes: small, immutable and validated."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, AwareDatetime, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from sparse_ncp.solvers import Diagnostics, Result, Settings, Stability, State
from sparse_ncp.solvers.metrics import NonzeroComponents, Sparsity
from sparse_ncp.solvers.runtime import (
    NO_ROWS,
    RECOMMENDED,
    Array,
    Float64,
    Mode,
    Number,
    Phase,
    PreparationStep,
    Resolved,
    StartOutcome,
    StopReason,
    Whole,
    index_itself,
    move_defaults,
)
from sparse_ncp.worker.owner_limits import FrozenModel

Item = TypeVar("Item")
JobState: TypeAlias = Literal["queued", "running", "succeeded", "failed", "cancelled"]
LIVE: frozenset[JobState] = frozenset({"queued", "running"})
TERMINAL: frozenset[JobState] = frozenset({"succeeded", "failed", "cancelled"})
Name: TypeAlias = Annotated[str, Field(max_length=200)]
AXIS: dict[str, Any] = {"name": "emission", "unit": "nm", "values": [250, 251, 252]}
Id: TypeAlias = Annotated[str, Field(max_length=64)]


def _without_control_characters(text: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError("has control characters; use printable text")
    return text


def _kind(values: object) -> str:
    return "text" if isinstance(values, list | tuple) and values and isinstance(values[0], str) else "numbers"


Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_without_control_characters)]
Coordinate: TypeAlias = Annotated[Number, Field(allow_inf_nan=False)]
# All numbers or all text, like the first entry. Only the first invalid entry is reported.
Coordinates: TypeAlias = Annotated[
    Annotated[tuple[Coordinate, ...], Field(fail_fast=True, json_schema_extra={"minItems": 1}), Tag("numbers")]
    | Annotated[tuple[Text, ...], Field(fail_fast=True, json_schema_extra={"minItems": 1}), Tag("text")],
    Discriminator(_kind),
]


class Axis(FrozenModel):
    """The labels of one mode."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": AXIS})

    name: Text = Field(description="name of the mode, unique within the tensor")
    unit: Text | None = Field(None, description="unit of the values")
    values: Coordinates = Field(description="a number for each index of the mode, or a text for each")

    @property
    def is_text(self) -> bool:
        return isinstance(self.values[0], str)


Axes: TypeAlias = tuple[Axis, ...]


class ZeroMap(FrozenModel):
    """Where fibres of zeros are, over one or two other modes."""

    modes: tuple[int, ...] = Field(description="modes of the rows and columns, counted from 1: the longest other ones")
    steps: tuple[int, ...] = Field(description="every how many indices of these modes the map has a row or column")
    rows: tuple[tuple[int, ...], ...] = Field(description="1 where a fibre is zero throughout, else 0")


class ZeroReport(FrozenModel):
    """Fibres along one mode that are zero throughout, compared with a fit of all other entries."""

    mode: int = Field(description="mode along which the fibres run, counted from 1")
    entries: int = Field(description="number of entries in these fibres; an estimate for a large tensor")
    share: float = Field(description="the same, as a fraction of the observed entries")
    ratio: float = Field(description="size of the fit in these fibres, in units of its residual elsewhere")
    level: float = Field(description="size of the fit in these fibres, in units of the readings elsewhere")
    look_missing: bool = Field(description="whether the fit contradicts these zeros; then consider zeros: missing")
    map: ZeroMap


ZERO_REPORTS: TypeAdapter[tuple[ZeroReport, ...]] = TypeAdapter(tuple[ZeroReport, ...])


class TensorRecord(FrozenModel):
    """A stored tensor and the statistics of its entries."""

    id: str
    owner: str
    name: str | None
    shape: tuple[int, ...]
    dtype: str
    nbytes: int = Field(description="size of the .npy file in bytes")
    sha256: str
    min: float = Field(description="smallest entry; this, max and norm ignore NaN")
    max: float
    norm: float
    missing: int = Field(0, description="number of entries that are NaN")
    negative: int = Field(0, description="number of negative entries")
    axes: Axes | None = Field(None, description="labels of the modes; null if there are none, and in lists")
    zeros: tuple[ZeroReport, ...] | None = Field(
        None,
        description="fibres of zeros, and whether they look like missing readings; null until a worker has looked for "
        "them, a few seconds after the upload, and in lists",
    )
    created_at: AwareDatetime


class Source(FrozenModel):
    """The tensor of a job: its bytes, and its labels at the time of submission."""

    sha256: str
    axes: Axes | None


class InitialJob(FrozenModel):
    """A job whose factors are the starting point."""

    job_id: Id = Field(description="job to take factors from, final or from its last checkpoint")


class MaskTensor(FrozenModel):
    """A mask that says which entries of the tensor are observed."""

    tensor_id: Id = Field(
        description="a tensor of booleans, true where an entry is observed; each mode has the tensor's length, or 1"
    )


def _each_once(modes: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(modes)) < len(modes):
        raise ValueError("names a mode twice; name each mode once")
    return modes


class FixedModel(FrozenModel):
    """Factors of another job that are kept fixed while those of the other modes are fitted."""

    job_id: Id = Field(description="a finished job of the same rank")
    modes: Annotated[tuple[Mode, ...], AfterValidator(_each_once)] = Field(
        min_length=1, description="modes whose factors are fixed, counted from 1; at least one mode must remain"
    )


EXAMPLE = {"tensor_id": "0123456789abcdef", "rank": 8, "beta": 0.1, "preset": "recommended"}


def _describe_request(schema: dict[str, Any]) -> None:
    """Adapt the schema to requests: a preset may set the method, and the example can be sent as it is."""
    move_defaults(schema, RECOMMENDED)
    schema["required"].remove("method")
    schema["example"] = EXAMPLE


class JobRequest(Settings):
    """The body of a job submission: the settings of the solver and the inputs of the run, in one flat object."""

    model_config = ConfigDict(json_schema_extra=_describe_request)

    tensor_id: Id = Field(description="the tensor to decompose")
    name: Name | None = Field(None, description="display name")
    priority: Whole = Field(0, ge=-10, le=10, description="jobs of the same owner with a higher priority run first")
    initial: InitialJob | None = Field(None, description="start from the factors of another job instead of the seed")
    mask: MaskTensor | None = Field(None, description="mask of observed entries; NaN entries are never observed")
    fixed: FixedModel | None = Field(
        None, description="factors of another job to keep fixed while the others are fitted"
    )

    def settings(self) -> Settings:
        """Return the settings of the solver. They are not validated again, which would take a tenth of a submission."""
        values = {name: getattr(self, name) for name in Settings.model_fields}
        return Settings.model_construct(set(values), **values)


class Progress(FrozenModel):
    """Progress of a run at one iteration."""

    iteration: int
    objective: float
    relative_error: float
    fit: float
    seconds: float = Field(description="computing time so far, over all attempts")
    phase: Phase = Field(
        "exact",
        description="start: a trial start, of which the best one is continued; compressed, single: approximate "
        "numbers, from the compressed tensor or the copy in single precision with which an accelerated run begins; "
        "exact: numbers from the tensor itself",
    )
    start: int | None = Field(
        None, description="number of the trial start, from 1; null in the run that continues from one"
    )

    @classmethod
    def from_state(cls, state: State, iteration: int) -> Self:
        """Return the progress at an iteration that the state has reached."""
        history, place = state.history, iteration - 1
        error = history.relative_error[place]
        return cls(
            iteration=iteration,
            objective=history.objective[place],
            relative_error=error,
            fit=1 - error,
            seconds=history.seconds[place],
            phase=state.phase_at(iteration),
            start=history.start[place],
        )


class ComponentStability(FrozenModel):
    """Stability of the components: how well each is found again in resampled samples."""

    samples_mode: int = Field(description="the mode whose indices are the samples, counted from 1")
    resamples: int = Field(description="number of bootstrap resamples")
    replicability: tuple[float | None, ...] = Field(
        description="for each component, the congruence that 90 % of the resamples reach: the product of the cosines "
        "over the other modes; null for a component that is zero"
    )
    split_half: tuple[float | None, ...] | None = Field(
        description="for each component, the lowest congruence between two halves of the samples, over three random "
        "splits; null with fewer than four samples"
    )


class LoadingBand(FrozenModel):
    """The range of every loading of a mode over the resamples, one row per index, in the scale of the factor."""

    lower: tuple[tuple[float | None, ...], ...] = Field(description="quantile of 5 %; null where no fit has it")
    upper: tuple[tuple[float | None, ...], ...] = Field(description="quantile of 95 %")


class JobStability(ComponentStability):
    """Stability of the components and loadings of a job."""

    modes: tuple[LoadingBand | None, ...] = Field(description="one per mode; null for the mode of the samples")

    @classmethod
    def of(cls, stability: Stability) -> Self:
        """Return what is published, with as many digits as a chart or a table shows."""

        def rows(values: Float64) -> list[list[float | None]]:
            return [[None if math.isnan(one) else float(f"{one:.7g}") for one in row] for row in values.tolist()]

        bands = [band and {"lower": rows(band.lower), "upper": rows(band.upper)} for band in stability.bands]
        same = {name: getattr(stability, name) for name in ComponentStability.model_fields}
        return cls.model_validate({**same, "modes": bands})


class JobResult(FrozenModel):
    """Summary of a finished run."""

    objective: float
    relative_error: float
    fit: float
    iterations: int
    seconds: float
    stop_reason: StopReason
    sparsity: Sparsity
    nonzero_components: NonzeroComponents
    weights: tuple[float, ...]
    warnings: tuple[str, ...]
    starts: tuple[StartOutcome, ...] = Field((), description="outcome of each trial start")
    missing: int = Field(0, description="number of entries that were not observed, because they are NaN or masked")
    stability: ComponentStability | None = Field(
        None, description="stability of the components; null unless it was requested"
    )
    excluded: dict[int, tuple[int, ...]] = Field(
        {},
        description="indices that were left out of the fit, by mode: the numbers of the result are without them, and "
        "their rows of the factors were computed for the fitted model",
    )

    @classmethod
    def from_state(
        cls,
        state: State,
        diagnostics: Diagnostics | None = None,
        stability: Stability | None = None,
        rows: Mapping[int, Array] = NO_ROWS,
        name: Callable[[int, int], int | str] = index_itself,
    ) -> Self:
        """Return the result of a run that has ended; `name` gives the labels of indices for warnings."""
        result = Result.of(state, diagnostics, stability, rows, name)
        fields = {name: getattr(result, name) for name in cls.model_fields if name != "stability"}
        if stability is not None:
            fields["stability"] = {name: getattr(stability, name) for name in ComponentStability.model_fields}
        return cls.model_validate({**fields, "weights": result.weights.tolist()})


Format: TypeAlias = Literal["npz", "mat", "csv", "nc"]
Scale: TypeAlias = Literal["none", "unit", "max"]
Order: TypeAlias = Literal["none", "share"]
Zeros: TypeAlias = Literal["keep", "drop"]


class Export(FrozenModel):
    """Format and normalisation of exported factors."""

    format: Format = "npz"
    scale: Scale = "none"
    order: Order = "none"
    zeros: Zeros = "keep"
    mode: int | None = Field(None, description="csv: export only the factor of this mode")

    @property
    def stored_name(self) -> str | None:
        """Name of the stored file that has this format, or None if the export has to be created."""
        plain = (self.scale, self.order, self.zeros) == ("none", "none", "keep")
        return f"factors.{self.format}" if plain and self.format in ("npz", "mat") else None


ErrorKind: TypeAlias = Literal["input", "memory", "quota", "system"]


class JobError(FrozenModel):
    """The reason why a job failed, and what to do about it."""

    kind: ErrorKind
    message: str
    remedy: str


JobPhase: TypeAlias = Literal["preparing", Phase, "diagnosing", "resampling"]


class Preparation(FrozenModel):
    """Progress of an attempt before the end of its first sweep, or after the last one."""

    step: Literal["check", PreparationStep, "resample"] = Field(
        description="check: compare the stored bytes with their SHA-256; scan: range and norm of the entries; "
        "weights: estimate the noise, for automatic sparsity; start: the starting factors; compress, single: compress "
        "the tensor or copy it in single precision, for an accelerated run; sweep: the first sweep; resample: after "
        "the last sweep, fit the result again to other samples"
    )
    share: float = Field(ge=0, le=1, description="fraction of the step that is done, as far as it is known")


class Paused(FrozenModel):
    """Why a job that has begun is queued again, or why no job of its owner runs."""

    iteration: int = Field(description="the iteration after which the job continues; 0 if it has not begun")
    since: AwareDatetime
    reason: Literal["others", "priority", "operator"] = Field(
        description="others: it gives way to other users, who have used less; priority: to a job of the same owner "
        "with a higher priority; operator: the operator has paused the owner"
    )
    done: float | None = Field(
        ge=0,
        le=1,
        description="fraction of its iterations or of its seconds, whichever is larger; null where that is not known",
    )
    message: str = Field(description="the same in words, such as 'gives way to other users, 37 % done'")


class Job(FrozenModel):
    """A submitted job with its settings, state and result."""

    id: str
    owner: str
    name: str | None
    tensor_id: str
    priority: int
    initial: InitialJob | None
    mask: MaskTensor | None
    fixed: FixedModel | None
    state: JobState
    settings: Settings
    resolved: Resolved | None = Field(
        None, description="values of settings that depend on the method or the tensor; null until the job runs"
    )
    phase: JobPhase | None = Field(
        None,
        description="preparing before the first sweep of an attempt, then the phase of the progress, diagnosing at the "
        "end if that takes over a second, resampling while its stability is assessed; null unless the job is running",
    )
    preparing: Preparation | None = Field(
        None,
        description="progress of a preparation, or of resampling, that takes over half a second; null in other phases",
    )
    progress: Progress | None
    factors_iteration: int | None = Field(
        None, description="iteration of the factors that can be downloaded now; null before the first checkpoint"
    )
    result: JobResult | None
    error: JobError | None
    warnings: tuple[str, ...] = Field((), description="advice that was known at submission; the result has its own")
    attempt: int
    cancel_requested: bool
    queue_position: int | None = Field(
        description="place in the queue, where 1 is next; null unless queued, and while the operator pauses the owner"
    )
    paused: Paused | None = Field(
        None, description="why a job that has begun is queued again, or is paused by the operator; else null"
    )
    study_id: str | None = Field(description="the study that the job belongs to, or null")
    created_at: AwareDatetime
    started_at: AwareDatetime | None
    finished_at: AwareDatetime | None


class Event(FrozenModel):
    """An event of a job or a study. Ids have the form `<iteration>-<n>`, increase, and are the same for all readers."""

    id: str
    kind: Literal["progress", "run", "state", "end"]
    payload: str = Field(
        description="JSON: a Progress, {state, attempt} and paused if it gives way, or the Job without its owner"
    )


def parse_event_id(text: str) -> tuple[int, int]:
    """Parse `<iteration>-<n>`; return (0, 0), which is before the first event, for anything else."""
    first, _, second = text.partition("-")
    if not (first.isdecimal() and second.isdecimal()):
        return 0, 0
    return int(first), int(second)


class Page(FrozenModel, Generic[Item]):
    """One page of a list."""

    items: tuple[Item, ...]
    next: str | None = Field(description="cursor of the next page, or null")


class Health(FrozenModel):
    """State of Redis, why it refuses to write if it does, and the number of live workers."""

    reachable: bool
    refusal: str | None = None
    appendonly: bool
    appendfsync_always: bool
    noeviction: bool
    live_workers: int

    @property
    def durable(self) -> bool:
        """Whether Redis keeps acknowledged writes through a power failure."""
        return self.appendonly and self.appendfsync_always and self.noeviction


Task: TypeAlias = Literal["run", "choose", "validate"]


class Reference(FrozenModel):
    """The known true factor of a mode, to compare with."""

    sha256: str
    mode: int


class Claim(FrozenModel):
    """The right to run one attempt of a job.

    `fence` increases with every claim of the job, and writes with an older fence are rejected.
    """

    job_id: str
    owner: str
    request_id: str | None = Field(description="id of the request that submitted the job")
    fence: int
    attempt: int
    sha256: str = Field(description="SHA-256 of the tensor")
    axes: Axes | None = Field(None, description="labels of the tensor at the time of submission")
    initial_job_id: str | None
    mask_sha256: str | None = Field(description="SHA-256 of the mask")
    fixed: FixedModel | None
    settings: Settings
    checkpoint: str | None = Field(description="name of the checkpoint to resume from")
    published: Progress | None = Field(description="the last iteration that was published")
    spent_seconds: float = Field(description="computing time of all attempts so far")
    worker: str = ""
    study_id: str | None = None
    task: Task = Field("run", description="a decomposition, or another task of a study")
    batch: str | None = Field(None, description="id of the batch of runs that share a process")
    reference: Reference | None = None
    study_request: str | None = Field(None, description="settings of the study as JSON, for a choice or a validation")
    validation_results: tuple[float, ...] = Field((), description="results of the validation checks that are done")

    @property
    def source(self) -> Source:
        return Source(sha256=self.sha256, axes=self.axes)


class JobCounts(FrozenModel):
    """Number of jobs in each state."""

    queued: int
    running: int
    succeeded: int
    failed: int
    cancelled: int


class Usage(FrozenModel):
    """Resources used by one owner."""

    owner: str
    stored_bytes: int = Field(description="tensors and results together; the same tensor uploaded twice counts twice")
    reserved_bytes: int = Field(
        0, description="bytes reserved for the results of queued and running jobs; the quota counts them"
    )
    tensor_bytes: int
    result_bytes: int = Field(description="factors and histories of finished jobs")
    jobs: JobCounts
    live_studies: int = Field(0, description="studies queued or running; each counts as one live job")
    live_jobs: int = Field(0, description="queued and running jobs as `limits.live_jobs` counts them")
    label_bytes: int = Field(0, description="labels of tensors, jobs and studies; equal ones count once")
    live_runs: int = Field(0, description="unfinished runs of queued and running studies")
    computing_seconds: float = Field(description="total of all jobs, including deleted ones")


class Allowance(FrozenModel):
    """Remaining requests of an owner under the rate limit."""

    granted: bool
    quota: int = Field(description="requests that may be sent at once")
    window_seconds: int = Field(description="time after which the quota is full again")
    left: int
    wait_seconds: int = Field(description="time until the next request is allowed")
