"""All that crosses a process boundary, as small frozen types."""

from typing import Annotated, Any, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, AwareDatetime, ConfigDict, Discriminator, Field, Tag

from sparse_ncp.solvers import Result, Settings, State
from sparse_ncp.solvers.metrics import NonzeroComponents, Sparsity
from sparse_ncp.solvers.runtime import (
    RECOMMENDED,
    Mode,
    Number,
    Phase,
    PreparationStep,
    Resolved,
    StartOutcome,
    StopReason,
    Whole,
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
# All numbers or all text, as the first is. Of many bad entries the first is reported, once.
Coordinates: TypeAlias = Annotated[
    Annotated[tuple[Coordinate, ...], Field(fail_fast=True, json_schema_extra={"minItems": 1}), Tag("numbers")]
    | Annotated[tuple[Text, ...], Field(fail_fast=True, json_schema_extra={"minItems": 1}), Tag("text")],
    Discriminator(_kind),
]


class Axis(FrozenModel):
    """The labels of one mode."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": AXIS})

    name: Text = Field(description="what the mode is; no two modes of a tensor have the same")
    unit: Text | None = Field(None, description="of the values")
    values: Coordinates = Field(description="one number or one text for each index of the mode, not both")

    @property
    def is_text(self) -> bool:
        return isinstance(self.values[0], str)


Axes: TypeAlias = tuple[Axis, ...]


class TensorRecord(FrozenModel):
    id: str
    owner: str
    name: str | None
    shape: tuple[int, ...]
    dtype: str
    nbytes: int = Field(description="length of the .npy file")
    sha256: str
    min: float = Field(description="this, max and norm: over the entries that are not NaN")
    max: float
    norm: float
    missing: int = Field(0, description="how many entries are NaN")
    negative: int = Field(0, description="how many entries are negative")
    axes: Axes | None = Field(None, description="the labels of its modes; null without any, and in lists")
    created_at: AwareDatetime


class Source(FrozenModel):
    """What a job runs on: the bytes, and the labels they had when it was submitted."""

    sha256: str
    axes: Axes | None


class InitialJob(FrozenModel):
    """Start from the factors of another job."""

    job_id: Id = Field(description="its final factors, or those of its last checkpoint")


class MaskTensor(FrozenModel):
    """Which entries of the tensor are observed."""

    tensor_id: Id = Field(
        description="a tensor of booleans, true where an entry is observed; each mode has the tensor's length, or 1"
    )


def _each_once(modes: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(modes)) < len(modes):
        raise ValueError("names a mode twice; name each once")
    return modes


class FixedModel(FrozenModel):
    """Factors of another job that stay as they are, while those of the other modes are fitted."""

    job_id: Id = Field(description="a job that has ended, of the same rank")
    modes: Annotated[tuple[Mode, ...], AfterValidator(_each_once)] = Field(
        min_length=1, description="whose factors stay, counted from 1; any but all"
    )


EXAMPLE = {"tensor_id": "0123456789abcdef", "rank": 8, "beta": 0.1, "preset": "recommended"}


def _describe_request(schema: dict[str, Any]) -> None:
    """The schema of what a caller sends: a preset may bring the method, and the example is one that works."""
    move_defaults(schema, RECOMMENDED)
    schema["required"].remove("method")
    schema["example"] = EXAMPLE


class JobRequest(Settings):
    """What may be asked of the server: the solver's settings, and what to run them on. One flat body."""

    model_config = ConfigDict(json_schema_extra=_describe_request)

    tensor_id: Id = Field(description="the tensor to decompose")
    name: Name | None = Field(None, description="a name for people")
    priority: Whole = Field(0, ge=-10, le=10, description="higher runs first among the same owner's jobs")
    initial: InitialJob | None = Field(None, description="start from another job's factors instead of the seed")
    mask: MaskTensor | None = Field(None, description="which entries are observed, besides those that are not NaN")
    fixed: FixedModel | None = Field(None, description="keep some factors of another job, and fit the others")

    def settings(self) -> Settings:
        """The settings of the solver. They were checked with the request: once more would cost a submission a tenth."""
        values = {name: getattr(self, name) for name in Settings.model_fields}
        return Settings.model_construct(set(values), **values)

    def limited_settings(self, max_seconds: float | None) -> Settings:
        """The same, with what a job gets that leaves `stop.max_seconds` out."""
        settings = self.settings()
        if settings.stop.max_seconds is not None:
            return settings
        stop = settings.stop.model_copy(update={"max_seconds": max_seconds})
        return settings.model_copy(update={"stop": stop})


class Progress(FrozenModel):
    """The numbers of one iteration."""

    iteration: int
    objective: float
    relative_error: float
    fit: float
    seconds: float = Field(description="computing time up to then, over all attempts")
    phase: Phase = Field(
        "exact",
        description="start: of a trial start, of which the lowest goes on; compressed, single: approximate numbers, of "
        "the compressed tensor or the copy in single precision that an accelerated run begins with; exact: of the "
        "tensor itself",
    )
    start: int | None = Field(None, description="which trial start, from 1; null in the run that goes on from one")

    @classmethod
    def from_state(cls, state: State, iteration: int) -> Self:
        """The numbers of an iteration that the state has reached."""
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


class JobResult(FrozenModel):
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
    starts: tuple[StartOutcome, ...] = Field((), description="how far each of several trial starts came")
    missing: int = Field(0, description="entries that were not observed: NaN or masked")

    @classmethod
    def from_state(cls, state: State) -> Self:
        """The result of an ended run."""
        result = Result.of(state)
        fields = {name: getattr(result, name) for name in cls.model_fields}
        return cls.model_validate({**fields, "weights": result.weights.tolist()})


Format: TypeAlias = Literal["npz", "mat", "csv", "nc"]
Scale: TypeAlias = Literal["none", "unit", "max"]
Order: TypeAlias = Literal["none", "share"]
Zeros: TypeAlias = Literal["keep", "drop"]


class Export(FrozenModel):
    """How factors are to be given."""

    format: Format = "npz"
    scale: Scale = "none"
    order: Order = "none"
    zeros: Zeros = "keep"
    mode: int | None = Field(None, description="csv: only this mode's table")

    @property
    def stored_name(self) -> str | None:
        """The name of the file that a job keeps anyway; None for one that is made on request."""
        plain = (self.scale, self.order, self.zeros) == ("none", "none", "keep")
        return f"factors.{self.format}" if plain and self.format in ("npz", "mat") else None


class JobError(FrozenModel):
    kind: Literal["input", "memory", "system"]
    message: str
    remedy: str


JobPhase: TypeAlias = Literal["preparing", Phase, "diagnosing"]


class Preparation(FrozenModel):
    """What an attempt does before its first sweep has ended, and how far it is."""

    step: Literal["check", PreparationStep] = Field(
        description="check: the stored bytes against their SHA-256; scan: range and norm of the entries; weights: a "
        "fit that tells the noise, for automatic sparsity; start: the starting factors; compress, single: a compressed "
        "tensor or a copy in single precision, for an accelerated run; sweep: the first sweep"
    )
    share: float = Field(ge=0, le=1, description="of the step that is done, as far as it is known")


class Job(FrozenModel):
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
        None, description="what settings came to that depend on the method or the tensor; null until the job runs"
    )
    phase: JobPhase | None = Field(
        None,
        description="preparing before the first sweep of an attempt, then that of the progress, diagnosing where that "
        "takes over a second at the end; null unless the job is running",
    )
    preparing: Preparation | None = Field(
        None, description="how far that is, where it takes over half a second; null in every other phase"
    )
    progress: Progress | None
    factors_iteration: int | None = Field(
        None, description="of the factors that can be downloaded now; null before the first checkpoint"
    )
    result: JobResult | None
    error: JobError | None
    attempt: int
    cancel_requested: bool
    queue_position: int | None = Field(description="1 is next; null unless queued")
    study_id: str | None = Field(description="of the study that it is a run of; null for a job of its own")
    created_at: AwareDatetime
    started_at: AwareDatetime | None
    finished_at: AwareDatetime | None


class Event(FrozenModel):
    """One event of a job or a study. Ids are monotone, `<iteration>-<n>`, and the same for every reader at any time."""

    id: str
    kind: Literal["progress", "run", "state", "end"]
    payload: str = Field(description="JSON: a Progress, {state, attempt}, or the Job without its owner")


class Page(FrozenModel, Generic[Item]):
    items: tuple[Item, ...]
    next: str | None = Field(description="the cursor of the next page, or null")


class Health(FrozenModel):
    """The state of Redis, and how many workers are alive."""

    reachable: bool
    appendonly: bool
    appendfsync_always: bool
    noeviction: bool
    live_workers: int

    @property
    def durable(self) -> bool:
        return self.appendonly and self.appendfsync_always and self.noeviction


Task: TypeAlias = Literal["run", "choose", "validate"]


class Reference(FrozenModel):
    """The true factor of a mode."""

    sha256: str
    mode: int


class Claim(FrozenModel):
    """The right to run one attempt of a job. `fence` grows with every claim; an older one can write nothing."""

    job_id: str
    owner: str
    request_id: str | None = Field(description="of the request that submitted the job")
    fence: int
    attempt: int
    sha256: str = Field(description="of the tensor")
    axes: Axes | None = Field(None, description="the labels that the tensor had when the job was submitted")
    initial_job_id: str | None
    mask_sha256: str | None = Field(description="of the tensor that says what is observed")
    fixed: FixedModel | None
    settings: Settings
    checkpoint: str | None = Field(description="name of the checkpoint to resume from")
    published: Progress | None = Field(description="the last iteration that readers have seen")
    spent_seconds: float = Field(description="computing time of all attempts so far")
    worker: str = ""
    study_id: str | None = None
    task: Task = Field("run", description="a decomposition, or what else a study needs")
    batch: str | None = Field(None, description="of the runs that share a process with this one")
    reference: Reference | None = None
    study_request: str | None = Field(None, description="settings of the study as JSON, for a choice or a validation")
    validation_results: tuple[float, ...] = Field((), description="results of the validation checks that are done")

    @property
    def source(self) -> Source:
        return Source(sha256=self.sha256, axes=self.axes)


class JobCounts(FrozenModel):
    queued: int
    running: int
    succeeded: int
    failed: int
    cancelled: int


class Usage(FrozenModel):
    """What one owner has taken."""

    owner: str
    stored_bytes: int = Field(description="tensors and results together; a tensor counts once per record")
    tensor_bytes: int
    result_bytes: int = Field(description="factors and histories of jobs that have ended")
    jobs: JobCounts
    live_studies: int = Field(0, description="studies queued or running; each counts as one live job")
    computing_seconds: float = Field(description="of all jobs ever, deleted ones included")


class Allowance(FrozenModel):
    """What an owner has left of their requests per second."""

    granted: bool
    quota: int = Field(description="requests that may come at once")
    window_seconds: int = Field(description="time in which the quota is full again")
    left: int
    wait_seconds: int = Field(description="until there is one more")
