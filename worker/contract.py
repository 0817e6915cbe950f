"""All that crosses a process boundary, as small frozen types."""

from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import AwareDatetime, ConfigDict, Field

from solvers import Settings
from solvers.settings import Whole
from solvers.state import Phase, StopReason
from worker.value import Value

Item = TypeVar("Item")
JobState: TypeAlias = Literal["queued", "running", "succeeded", "failed", "cancelled"]
LIVE: frozenset[JobState] = frozenset({"queued", "running"})
TERMINAL: frozenset[JobState] = frozenset({"succeeded", "failed", "cancelled"})
Name: TypeAlias = Annotated[str, Field(max_length=200)]
Id: TypeAlias = Annotated[str, Field(max_length=64)]


class TensorRecord(Value):
    id: str
    owner: str
    name: str | None
    shape: tuple[int, ...]
    dtype: str
    nbytes: int = Field(description="length of the .npy file")
    sha256: str
    min: float
    max: float
    norm: float
    created_at: AwareDatetime


class InitialJob(Value):
    """Start from the factors of another job."""

    job_id: Id = Field(description="its final factors, or those of its last checkpoint")


EXAMPLE = {"tensor_id": "0123456789abcdef", "rank": 8, "beta": 0.1, "preset": "recommended"}


def _as_sent(schema: dict[str, Any]) -> None:
    """A preset may bring the method; and an example that can be sent, not one of every field at once."""
    schema["required"].remove("method")
    schema["example"] = EXAMPLE


class JobRequest(Settings):
    """What may be asked of the server: the solver's settings, and what to run them on. One flat body."""

    model_config = ConfigDict(json_schema_extra=_as_sent)

    tensor_id: Id = Field(description="the tensor to decompose")
    name: Name | None = Field(None, description="a name for people")
    priority: Whole = Field(0, ge=-10, le=10, description="higher runs first among the same owner's jobs")
    initial: InitialJob | None = Field(None, description="start from another job's factors instead of the seed")

    def settings(self) -> Settings:
        """The solver's part."""
        return Settings.model_validate(self.model_dump(include=set(Settings.model_fields)))


class Progress(Value):
    """The numbers of one iteration."""

    iteration: int
    objective: float
    relative_error: float
    fit: float
    seconds: float = Field(description="computing time up to then, over all attempts")
    phase: Phase = Field(
        "exact",
        description="compressed: approximate numbers, of the compressed tensor that an accelerated run begins with; "
        "exact: of the tensor itself",
    )


class SparsityShares(Value):
    """Share of entries below the threshold, and relative to their column's maximum."""

    per_mode: tuple[float, ...]
    relative_per_mode: tuple[float, ...]


class ComponentCounts(Value):
    """Components that reach the threshold in each mode, and in all modes at once."""

    per_mode: tuple[int, ...]
    all_modes: int


class JobResult(Value):
    objective: float
    relative_error: float
    fit: float
    iterations: int
    seconds: float
    stop_reason: StopReason
    sparsity: SparsityShares
    nonzero_components: ComponentCounts
    weights: tuple[float, ...]
    warnings: tuple[str, ...]


class JobError(Value):
    kind: Literal["input", "memory", "system"]
    message: str
    remedy: str


class Job(Value):
    id: str
    owner: str
    name: str | None
    tensor_id: str
    priority: int
    initial: InitialJob | None
    state: JobState
    settings: Settings
    progress: Progress | None
    result: JobResult | None
    error: JobError | None
    attempt: int
    cancel_requested: bool
    queue_position: int | None = Field(description="1 is next; null unless queued")
    study_id: str | None = Field(description="null: jobs do not belong to studies yet")
    created_at: AwareDatetime
    started_at: AwareDatetime | None
    finished_at: AwareDatetime | None


class Event(Value):
    """One event of a job. Ids are monotone, `<iteration>-<n>`, and the same for every reader at any time."""

    id: str
    kind: Literal["progress", "state", "end"]
    payload: str = Field(description="JSON: a Progress, {state, attempt}, or the Job without its owner")


class Page(Value, Generic[Item]):
    items: tuple[Item, ...]
    next: str | None = Field(description="the cursor of the next page, or null")


class Health(Value):
    """What `Records.ping` saw."""

    reachable: bool
    appendonly: bool
    appendfsync_always: bool
    noeviction: bool
    live_workers: int

    @property
    def durable(self) -> bool:
        return self.appendonly and self.appendfsync_always and self.noeviction


class Claim(Value):
    """The right to run one attempt of a job. `fence` grows with every claim; an older one can write nothing."""

    job_id: str
    owner: str
    request_id: str | None = Field(description="of the request that submitted the job")
    fence: int
    attempt: int
    sha256: str = Field(description="of the tensor")
    initial_job_id: str | None
    settings: Settings
    checkpoint: str | None = Field(description="name of the checkpoint to resume from")
    published: Progress | None = Field(description="the last iteration that readers have seen")
    spent_seconds: float = Field(description="computing time of all attempts so far")
