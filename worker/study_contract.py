"""Requests and records of studies, as they cross process boundaries."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    create_model,
)

from sparse_ncp.solvers import Settings
from sparse_ncp.solvers.runtime import (
    RECOMMENDED,
    Exclude,
    MethodName,
    Missing,
    Mode,
    Negative,
    NotNegative,
    Positive,
    Resamples,
    Seconds,
    Share,
    Whole,
    Zeros,
    move_defaults,
)
from sparse_ncp.solvers.studies.advice import Advice
from sparse_ncp.solvers.studies.fitting.noise import NoiseKind
from sparse_ncp.solvers.studies.recommendation import RankEvidence, Recommendation
from sparse_ncp.solvers.studies.settings import (
    COMMON,
    PENALTY,
    Cell,
    ChoiceSettings,
    ComparisonSettings,
    NoiseSetting,
    Validation,
)
from sparse_ncp.solvers.studies.state import Point, Stage
from sparse_ncp.solvers.studies.tables import Row
from sparse_ncp.solvers.studies.validation import Validated
from sparse_ncp.worker.contract import Id, Job, JobError, JobRequest, JobResult, JobState, MaskTensor, Name
from sparse_ncp.worker.former_names import FormerNames
from sparse_ncp.worker.owner_limits import FrozenModel

StudyKind: TypeAlias = Literal["compare", "choose", "stability"]
# Longest list in a request; the product of all lists is bounded by the caller's limit on runs.
LONGEST = 1000
# Fields of a run's settings, by the lists of a comparison that they come from.
LISTS: Mapping[str, str] = {"rank": "ranks", "method": "methods", "beta": "betas", "sparsity": "sparsities"}
COMPARE: dict[str, Any] = {
    "kind": "compare",
    "tensor_id": "0123456789abcdef",
    "ranks": [4, 8],
    "methods": ["anls-bpp"],
    "repeats": 5,
}
STABILITY: dict[str, Any] = {
    "kind": "stability",
    "tensor_id": "0123456789abcdef",
    "job_id": "0123456789abcdef",
    "resamples": 50,
}
CHOOSE: dict[str, Any] = {"kind": "choose", "tensor_id": "0123456789abcdef", "rank": 12, "seeds": 3}


class ReferenceFactor(FrozenModel):
    """The true factor of a mode, for comparison with those of the runs."""

    tensor_id: Id = Field(description="a tensor of order 2: length of the mode × number of true components")
    mode: Mode = Field(description="the mode of the factor, counted from 1")


class StudyInputs(FrozenModel):
    """Fields that every kind of study accepts."""

    model_config = ConfigDict(populate_by_name=True)

    tensor_id: Id = Field(description="the tensor to decompose")
    name: Name | None = Field(None, description="a name for people")
    priority: Whole = Field(0, ge=-10, le=10, description="higher runs first among the same owner's jobs")
    seed: Whole = Field(0, ge=0, description="seed of the first start; each further start adds 1")

    def recorded_fields(self) -> dict[str, Any]:
        """Return the fields of the request that the record repeats as `request`."""
        kept = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {name: value for name, value in kept.items() if name not in ("kind", "tensor_id", "name", "priority")}


class StudyFields(StudyInputs):
    """Fields of studies that look for a number of components."""

    validation: Validation = Field(
        Validation(), alias="validate", description="validation of numbers of components, without a penalty"
    )


def _as_sent(schema: dict[str, Any]) -> None:
    """Leave out defaults that a preset may replace, and add an example that works."""
    move_defaults(schema, {name: value for name, value in RECOMMENDED.items() if name in schema["properties"]})
    schema["example"] = COMPARE


class CompareFields(StudyFields):
    """A grid of runs: every rank with every method and every weight, from the same starts."""

    model_config = ConfigDict(json_schema_extra=_as_sent)

    kind: Literal["compare"]
    ranks: tuple[Positive, ...] = Field(
        fail_fast=True, min_length=1, max_length=LONGEST, description="numbers of components"
    )
    methods: tuple[MethodName, ...] = Field(
        fail_fast=True, min_length=1, max_length=LONGEST, description="names of methods"
    )
    betas: tuple[NotNegative, ...] | None = Field(
        None,
        fail_fast=True,
        min_length=1,
        max_length=LONGEST,
        description="weights of the sparsity penalty; 0 if omitted",
    )
    sparsities: tuple[Share, ...] | None = Field(
        None, fail_fast=True, min_length=1, max_length=LONGEST, description="relative weights, in place of betas"
    )
    repeats: Whole = Field(
        5, ge=1, le=1000, description="runs of each cell; run k starts from the same factors in every cell"
    )
    reference: ReferenceFactor | None = Field(None, description="the true factor of a mode, for the PSNR")

    @property
    def count(self) -> int:
        """The number of runs."""
        return len(self.ranks) * len(self.methods) * len(self.sparsities or self.betas or (0.0,)) * self.repeats

    @property
    def run_has_mask(self) -> bool:
        """Whether the runs have a mask."""
        return getattr(self, "mask", None) is not None

    @cached_property
    def grid(self) -> ComparisonSettings:
        """The grid of cells; ValidationError at the fields of the request if a cell is not a valid run."""
        given = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        known = {*COMMON, "ranks", "methods", "betas", "sparsities", "repeats", "seed", "validate"}
        try:
            return ComparisonSettings.model_validate({name: given[name] for name in given if name in known})
        except ValidationError as error:
            errors: dict[tuple[Any, ...], Any] = {}  # those of runs, at the lists that they come from, each once
            for found in error.errors(include_url=False):
                first, *rest = found["loc"] or ("methods",)
                location = (LISTS.get(str(first), first), *rest)
                details = {"type": found["type"], "input": found.get("input"), "ctx": found.get("ctx", {})}
                errors.setdefault((location, found["msg"]), {**details, "loc": location})
            raise ValidationError.from_exception_data(error.title, [*errors.values()]) from None

    def run(self, cell: Cell) -> JobRequest:
        """Return the first run of a cell as the request of a single job."""
        given = self.model_dump(mode="json", exclude_unset=True, include={*COMMON, "initial", "mask", "fixed"})
        same = {"penalty": PENALTY, **given}
        weight = {"beta": cell.beta} if cell.sparsity is None else {"sparsity": cell.sparsity}
        asked = {"rank": cell.rank, "method": cell.method, "seed": self.seed, "tensor_id": self.tensor_id}
        return JobRequest.model_validate({**same, **weight, **asked})


if TYPE_CHECKING:
    CompareRequest = CompareFields
else:  # the fields of a job that are the same in all runs, as the job defines them
    CompareRequest = create_model(
        "CompareRequest",
        __base__=CompareFields,
        __doc__=CompareFields.__doc__,
        **{
            name: (JobRequest.model_fields[name].annotation, JobRequest.model_fields[name])
            for name in (*COMMON, "initial", "mask", "fixed")
            if name != "penalty"
        },
        penalty=(
            JobRequest.model_fields["penalty"].annotation,
            Field(
                PENALTY,
                description="of all methods: l1: β‖Aⁿ‖₁; l1_squared: β/2 Σ‖row‖₁²; null: each method's own of the "
                "paper, whose objectives cannot be compared",
            ),
        ),
    )


class ChoiceStop(FrozenModel):
    """The stopping rule of a choice."""

    max_seconds: Seconds | None = Field(None, description="of computing time; null for no limit")


class ChooseRequest(StudyFields):
    """The number of components, found by dropping components from an overfit."""

    model_config = ConfigDict(json_schema_extra={"example": CHOOSE})

    kind: Literal["choose"]
    rank: Whole = Field(12, ge=2, le=200, description=ChoiceSettings.model_fields["rank"].description)
    seeds: Whole = Field(3, ge=1, le=50, description=ChoiceSettings.model_fields["seeds"].description)
    missing: Missing = Field("refuse", description=ChoiceSettings.model_fields["missing"].description)
    negative: Negative = Field("refuse", description=ChoiceSettings.model_fields["negative"].description)
    zeros: Zeros = Field("readings", description=ChoiceSettings.model_fields["zeros"].description)
    exclude: Exclude | None = Field(None, description=ChoiceSettings.model_fields["exclude"].description)
    mask: MaskTensor | None = Field(None, description="mask of observed entries; NaN entries are never observed")
    samples_mode: Mode = Field(1, description=ChoiceSettings.model_fields["samples_mode"].description)
    noise: NoiseSetting = Field("auto", description=ChoiceSettings.model_fields["noise"].description)
    stop: ChoiceStop = Field(ChoiceStop(), description="when to give up")

    def run(self) -> JobRequest:
        """Return the request of the job that makes the choice, whose model has no penalty."""
        same = self.model_dump(include=set(JobRequest.model_fields) - {"stop"})
        return JobRequest.model_validate({**same, "method": "hals", "stop": {"max_seconds": self.stop.max_seconds}})

    def settings(self) -> ChoiceSettings:
        """Return the settings of the solver."""
        given = {name: getattr(self, name) for name in ChoiceSettings.model_fields if name != "validation"}
        return ChoiceSettings(**given, validation=self.validation)


class StabilityRequest(StudyInputs):
    """How sure the components of a job that has ended are: the job goes on from its factors, with `stability`."""

    model_config = ConfigDict(json_schema_extra={"example": STABILITY})

    kind: Literal["stability"]
    job_id: Id = Field(description="the job whose model is assessed; it must have ended with factors")
    seed: Whole = Field(0, ge=0, description="seed of the samples that are drawn")
    samples_mode: Mode = Field(1, description=Settings.model_fields["samples_mode"].description)
    resamples: Resamples = Field(20, description=Settings.model_fields["resamples"].description)

    def run(self, job: Job) -> JobRequest:
        """Return the run that assesses this job: from its factors, with its penalties, mask and fixed factors."""
        kept = job.settings.model_dump(mode="json", exclude={"preset", "sparsity"})
        penalties = {} if job.resolved is None else asdict(job.resolved)
        penalties.pop("init", None)
        once = {"starts": 1, "regrow": False, "accelerate": "none", "stability": True}
        own = self.model_dump(include={"tensor_id", "name", "priority", "seed", "samples_mode", "resamples"})
        inputs = {"initial": {"job_id": job.id}, "mask": job.mask, "fixed": job.fixed}
        return JobRequest.model_validate({**kept, **penalties, **once, **own, **inputs})


def _kind(body: object) -> str | None:
    kind = body.get("kind") if isinstance(body, Mapping) else getattr(body, "kind", None)
    return kind if isinstance(kind, str) else None


StudyRequest: TypeAlias = Annotated[
    Annotated[CompareRequest, Tag("compare")]
    | Annotated[ChooseRequest, Tag("choose")]
    | Annotated[StabilityRequest, Tag("stability")],
    Discriminator(_kind),
]


class RunCounts(FrozenModel):
    """The runs of a study by state."""

    total: int
    queued: int
    running: int
    succeeded: int
    failed: int
    cancelled: int

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.cancelled


class StudyRow(Row):
    """One cell over its repeats."""

    best: str | None = Field(description="the job with the lowest objective")


class HalvesFound(FrozenModel):
    congruence: tuple[float, ...] = Field(description="lowest congruence in the other modes, for each pair of halves")
    passed: bool = Field(description="whether the congruence of every pair is above 0.95")


class HoldoutFound(FrozenModel):
    relative_error: tuple[float, ...] = Field(description="relative error on held-out entries, for each fold")


class StudyRank(FrozenModel):
    """The evidence for one rank, over all its runs."""

    rank: int
    job_id: str | None = Field(description="job with the lowest relative error, whose core consistency is given")
    core_consistency: float | None
    split_half: HalvesFound | None
    holdout: HoldoutFound | None

    @classmethod
    def of(cls, evidence: RankEvidence, job_id: str | None) -> Self:
        """Convert evidence to the form in which it is published."""
        half, holdout = evidence.split_half, evidence.holdout
        return cls(
            rank=evidence.rank,
            job_id=job_id,
            core_consistency=evidence.core_consistency,
            split_half=HalvesFound(congruence=half.congruence, passed=half.passed) if half else None,
            holdout=HoldoutFound(relative_error=holdout.relative_error) if holdout else None,
        )


class StudyTable(FrozenModel):
    """One row per cell, in the order of ranks, methods and weights."""

    mode: int = Field(description="mode of sparsity and components, counted from 1")
    rows: tuple[Annotated[StudyRow, FormerNames(asked_sparsity="requested_sparsity")], ...]
    ranks: tuple[StudyRank, ...]
    notes: tuple[str, ...] = Field(
        (), description="what to know before rows are compared: objectives with different penalties, and warnings"
    )


class ChoiceFound(FrozenModel):
    """Evidence for the advice of a choice."""

    relative_error: float
    noise: NoiseKind
    noise_level: float = Field(description="norm of the noise divided by that of the tensor")
    points: tuple[Point, ...]
    validated: Validated


PublishedAdvice: TypeAlias = Annotated[Advice, FormerNames(sure="confidence", white="residuals_white", between="range")]


class Study(FrozenModel):
    id: str
    owner: str
    name: str | None
    kind: StudyKind
    tensor_id: str
    priority: int
    request: dict[str, Any] = Field(description="the other fields of the request")
    state: JobState
    runs: RunCounts
    progress: float = Field(description="from 0 to 1")
    stage: Stage | None = Field(description="step of a choice; null for a comparison")
    seconds_left: float | None = Field(
        description="estimate of the time left; null before there is one, and after the end"
    )
    table: StudyTable | None = Field(None, description="table of a comparison; null in lists and events")
    advice: PublishedAdvice | None = Field(None, description="advice of a choice that has ended")
    recommendation: Recommendation | None = Field(
        None, description="rank, weight and method that an ended comparison recommends; null if no run has succeeded"
    )
    choice: ChoiceFound | None = Field(None, description="evidence for the advice; null in lists and events")
    result: JobResult | None = Field(None, description="result of the job of a choice or stability that has ended")
    job_id: str | None = Field(None, description="job with the model of a choice or with the stability")
    error: JobError | None
    cancel_requested: bool
    created_at: AwareDatetime
    started_at: AwareDatetime | None
    finished_at: AwareDatetime | None


class Measures(BaseModel):
    """Measures of a run that a study keeps besides its result."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    psnr: float | None = None
    core_consistency: float | None = None
