"""Limits on what an owner of keys may use, and shares of the computing time."""

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from sparse_ncp.worker.config import Configuration


class FrozenModel(BaseModel):
    """An immutable model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(FrozenModel):
    """Limits of one owner; null means no limit. A key overrides only those limits of the server that it sets."""

    tensor_bytes: int | None = Field(None, ge=1, description="largest upload, in bytes")
    stored_bytes: int | None = Field(None, ge=1, description="bytes stored, tensors and results together")
    label_bytes: int | None = Field(
        None, ge=1, description="bytes of labels of tensors and jobs; equal ones count once"
    )
    live_jobs: int | None = Field(None, ge=1, description="jobs that may be queued or running at the same time")
    study_runs: int | None = Field(None, ge=1, description="runs of a study; a study counts as one live job")
    live_runs: int | None = Field(None, ge=1, description="unfinished runs of queued and running studies together")
    rank: int | None = Field(None, ge=1, description="largest rank of a job")
    job_seconds: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="largest stop.max_seconds of a job, and its default"
    )
    requests_per_second: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="average rate; bursts of ten seconds' worth are allowed"
    )

    @classmethod
    def of(cls, configuration: Configuration) -> "Limits":
        """Return the default limits of the server."""
        return cls.model_validate({name: getattr(configuration, f"max_{name}") or None for name in cls.model_fields})

    @property
    def given(self) -> dict[str, float | None]:
        """The limits that were set explicitly, including those set to null."""
        return self.model_dump(exclude_unset=True)

    def overridden(self, own: "Limits") -> "Limits":
        """Return these limits with those that `own` sets."""
        return self.model_copy(update=own.given)


UNLIMITED = Limits()


class OwnerPause(FrozenModel):
    """A pause of an owner by the operator: since when, and why."""

    since: AwareDatetime
    note: str = Field("", max_length=200, description="the operator's reason, which the owner sees")

    @property
    def message(self) -> str:
        return f"paused by the operator: {self.note}" if self.note else "paused by the operator"


class OwnerShare(FrozenModel):
    """How much computing time an owner has used recently, and what the operator has set."""

    owner: str
    weight: float = Field(description="share of the computing time relative to other owners, by default 1")
    running: int = Field(description="workers in use; tiny runs of a study share one")
    queued: int
    recent_seconds: float = Field(description="recent computing time, with a half-life of NCP_SHARE_HALF_LIFE_SECONDS")
    share: float = Field(description="the same as a fraction of the recent computing time of all owners")
    account_seconds: float = Field(
        description="recent computing time divided by the weight; the owner with the lowest is served next. It "
        "starts at the lowest account of the owners with live jobs, so that no owner gains by having been away"
    )
    paused: OwnerPause | None = Field(None, description="the pause of the owner by the operator, or null")
