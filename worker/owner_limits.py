"""Limits of an owner: what one may take of the server."""

from pydantic import BaseModel, ConfigDict, Field

from sparse_ncp.worker.config import Configuration


class FrozenModel(BaseModel):
    """A model whose instances do not change, and that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(FrozenModel):
    """One owner's limits; null is no limit. Those of a key replace the server's only where they were given."""

    tensor_bytes: int | None = Field(None, ge=1, description="largest upload")
    stored_bytes: int | None = Field(None, ge=1, description="tensors and results kept, together")
    live_jobs: int | None = Field(None, ge=1, description="jobs queued or running at the same time")
    study_runs: int | None = Field(None, ge=1, description="runs of a study, which counts as one live job")
    rank: int | None = Field(None, ge=1, description="largest rank of a job")
    job_seconds: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="largest stop.max_seconds, and what a job gets that leaves it out"
    )
    requests_per_second: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="on average; ten seconds' worth may come at once"
    )

    @classmethod
    def of(cls, configuration: Configuration) -> "Limits":
        """The server's limits, for every owner whose key has no others."""
        return cls.model_validate({name: getattr(configuration, f"max_{name}") or None for name in cls.model_fields})

    @property
    def given(self) -> dict[str, float | None]:
        """The limits that were set, also those that were set to null."""
        return self.model_dump(exclude_unset=True)

    def overridden(self, own: "Limits") -> "Limits":
        return self.model_copy(update=own.given)


UNLIMITED = Limits()
