"""The configuration: every setting, and the one reader of environment variables."""

import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from sparse_ncp.solvers import available_cores

GIB = 1 << 30
ORIGIN = re.compile(r"https?://[^/\s*]+")


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _is_redis_url(text: str) -> bool:
    url = urlsplit(text)
    try:
        is_whole = bool(url.path) if url.scheme == "unix" else url.port != 0
    except ValueError:  # a port that is not a number, or too large
        return False
    return is_whole and url.scheme in ("redis", "rediss", "unix")


def _parts(text: str | None) -> list[str]:
    return [part.strip().rstrip("/") for part in (text or "").split(",") if part.strip()]


class Configuration(BaseSettings):
    """Every setting of the server, from `NCP_…` variables or given by the caller."""

    model_config = SettingsConfigDict(env_prefix="NCP_", frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="address the API listens on")
    port: int = Field(8000, ge=0, le=65535, description="port the API listens on; 0 takes a free one")
    root_path: str | None = Field(
        None,
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        description="path below which a proxy shows the server, such as /ncp; the proxy takes it away from requests",
    )
    allowed_hosts: str | None = Field(
        None, description="further names, separated by commas, under which a server without keys may be called"
    )
    data: Path = Field(Path("ncp-data"), description="folder of tensors, results and the embedded Redis")
    redis_url: str | None = Field(None, description="Redis to use; left out, `ncp serve` starts its own")
    redis_server: Path | None = Field(None, description="Redis or Valkey binary to start instead of the packaged one")
    workers: int = Field(1, ge=1, description="jobs that run at the same time on this machine")
    threads: int | None = Field(None, ge=1, description="threads per job; left out, the cores divided by the workers")
    max_tensor_bytes: int = Field(16 * GIB, ge=1, description="largest upload")
    max_stored_bytes: int | None = Field(None, ge=1, description="bytes an owner may store, tensors and results")
    max_live_jobs: int = Field(10_000, ge=0, description="jobs an owner may have queued or running; 0 for no limit")
    max_study_runs: int = Field(10_000, ge=0, description="runs of a study; 0 for no limit but 100,000")
    max_rank: int | None = Field(None, ge=1, description="largest rank of a job")
    max_job_seconds: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="largest `stop.max_seconds`, and what a job gets that leaves it out",
    )
    max_requests_per_second: float = Field(
        50,
        ge=0,
        allow_inf_nan=False,
        description="requests of a key's owner on average, ten seconds' worth at once; 0 for no limit",
    )
    max_job_memory_bytes: int = Field(8 * GIB, ge=1, description="memory a job may take beyond the mapped tensor")
    lease_seconds: float = Field(15, gt=0, description="a worker that is silent for this long has lost its job")
    checkpoint_seconds: float = Field(10, ge=0, description="time between two checkpoints of a job, at least")
    checkpoint_share: float = Field(
        0.02,
        gt=0,
        le=1,
        description="largest share of a run that checkpoints may take; large ones are written less often",
    )
    max_crashes: int = Field(
        3, ge=1, description="consecutive crashes of a job's process without any progress after which the job fails"
    )
    long_attempt_seconds: float = Field(
        600, gt=0, description="a crash after more computing time than this counts as a third of a crash"
    )
    cancel_seconds: float = Field(
        60, gt=0, description="time a cancelled job has to end its sweep; then it is ended, its last checkpoint stays"
    )
    stop_seconds: float = Field(60, gt=0, description="time a stopping worker has to checkpoint and hand back its jobs")
    grace_seconds: float = Field(
        15, gt=0, description="time a sweep may still take when its worker stops, at most half of `NCP_STOP_SECONDS`"
    )
    reaper_seconds: float = Field(
        5, gt=0, description="time between two searches for jobs of dead workers, at most a third of a lease"
    )
    stalled_seconds: float = Field(
        20, gt=0, description="an idle worker that takes no messages for this long, or for two leases, is restarted"
    )
    storage_retry_seconds: float = Field(
        1, gt=0, description="time between two attempts to use a disk that is full or unavailable"
    )
    redis_retry_seconds: float = Field(
        0.5, gt=0, description="time between two attempts of a running job to reach a Redis that is unavailable"
    )
    redis_patience_seconds: float = Field(
        5, gt=0, description="time a stopping job tries to reach Redis before it leaves its lease to expire"
    )
    redis_answer_seconds: float = Field(
        2, gt=0, description="time a request waits for Redis before it is answered with 503"
    )
    progress_seconds: float = Field(0.1, gt=0, description="time between two batches of published iterations")
    batch_seconds: float = Field(
        1, gt=0, description="computing time of tiny study runs that one process claims together"
    )
    max_batch_runs: int = Field(200, ge=1, description="tiny study runs that one process may claim together")
    request_threads: int = Field(40, ge=1, description="threads of the API that serve requests")
    max_body_bytes: int = Field(1 << 20, ge=1, description="largest body of a request that is not an upload")
    idempotency_hours: float = Field(24, gt=0, description="how long an Idempotency-Key is remembered")
    stream_seconds: int = Field(300, ge=1, description="how long the live events of an ended job stay in Redis")
    event_buffer: int = Field(
        1000, ge=1, description="live events held per watching client; one that lags further reads the record"
    )
    keep_alive_seconds: float = Field(15, gt=0, description="time between keep-alive comments of an event stream")
    keep_jobs_days: float | None = Field(
        None, ge=0, description="finished jobs are removed after this time; left out, never"
    )
    keep_tensors_days: float | None = Field(
        None, ge=0, description="tensors that nobody has used for this time are removed; left out, never"
    )
    tidy_seconds: float = Field(600, gt=0, description="time between two rounds of cleanup")
    min_free_bytes: int = Field(
        GIB // 4, ge=0, description="free disk below which uploads are refused and the server is not ready"
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        "info", description="how much is logged"
    )
    log_format: Annotated[Literal["human", "json"], BeforeValidator(_lower)] = Field(
        "human", description="human: lines to read; json: one object per line"
    )
    slow_seconds: float = Field(
        30, gt=0, description="a client that moves less than 16 KiB in this time, or sends no whole header, is closed"
    )
    session_hours: float = Field(
        12, gt=0, le=8760, allow_inf_nan=False, description="how long a browser stays signed in after a key was pasted"
    )
    max_connections: int = Field(
        10_000, ge=8, description="connections to the API, or as many as the limit of open files allows"
    )
    max_connections_per_address: int = Field(
        100, ge=1, description="connections of one address on which no key was sent yet; trusted proxies apart"
    )
    cors_origins: str | None = Field(
        None, description="origins whose pages may call the API from a browser, separated by commas; left out, none"
    )

    @field_validator("redis_url")
    @classmethod
    def _names_a_redis(cls, value: str | None) -> str | None:
        if value is not None and not _is_redis_url(value):  # which is not repeated: it may hold a password
            raise ValueError("is not the address of a Redis; write redis://host:6379/0 or unix:///path/to/socket")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: str | None) -> str | None:
        wrong = [origin for origin in _parts(value) if not ORIGIN.fullmatch(origin)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is not an origin; write https://host or https://host:port")
        return value

    @property
    def allowed_origins(self) -> list[str]:
        return _parts(self.cors_origins)

    @property
    def threads_per_job(self) -> int:
        """Threads of one job. By default all jobs together have as many as there are cores."""
        return self.threads or max(1, available_cores() // self.workers)

    def environment(self) -> dict[str, str]:
        """The same configuration, for another process."""
        values = self.model_dump(mode="json")
        return {f"NCP_{name.upper()}": str(value) for name, value in values.items() if value is not None}
