"""What an owner may take of the server, and what they have taken."""

from pydantic import Field

from worker.configuration import Configuration
from worker.value import Value


class Limits(Value):
    """One owner's limits; null is no limit. Of a key's own limits only those that were given count."""

    tensor_bytes: int | None = Field(None, ge=1, description="largest upload")
    stored_bytes: int | None = Field(None, ge=1, description="tensors and results kept, together")
    live_jobs: int | None = Field(None, ge=1, description="jobs queued or running at the same time")
    rank: int | None = Field(None, ge=1, description="largest rank of a job")
    job_seconds: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="largest stop.max_seconds, and what a job gets that leaves it out"
    )
    requests_per_second: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="on average; ten seconds' worth may come at once"
    )

    @classmethod
    def of(cls, configuration: Configuration) -> "Limits":
        """The server's, for everybody whose key says nothing else."""
        return cls.model_validate({name: getattr(configuration, f"max_{name}") or None for name in cls.model_fields})

    @property
    def given(self) -> dict[str, float | None]:
        """Those that were set, to null among others."""
        return self.model_dump(exclude_unset=True)

    def overridden(self, own: "Limits") -> "Limits":
        return self.model_copy(update=own.given)


UNLIMITED = Limits()


class JobCounts(Value):
    queued: int
    running: int
    succeeded: int
    failed: int
    cancelled: int


class Usage(Value):
    """What one owner has taken."""

    owner: str
    stored_bytes: int = Field(description="tensors and results together; a tensor counts once per record")
    tensor_bytes: int
    result_bytes: int = Field(description="factors and histories of jobs that have ended")
    jobs: JobCounts
    computing_seconds: float = Field(description="of all jobs ever, deleted ones included")


class Allowance(Value):
    """Where an owner stands with their requests per second."""

    granted: bool
    quota: int = Field(description="requests that may come at once")
    window_seconds: int = Field(description="time in which the quota is full again")
    left: int
    wait_seconds: int = Field(description="until there is one more")
