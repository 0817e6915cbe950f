"""Settings of the server. No other module reads environment variables."""

import re
from ipaddress import ip_network
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


def _parts(text: str | None) -> list[str]:
    return [part.strip().rstrip("/") for part in (text or "").split(",") if part.strip()]


class Configuration(BaseSettings):
    """Settings of the server, read from `NCP_…` environment variables or given as arguments."""

    model_config = SettingsConfigDict(env_prefix="NCP_", frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="address the API listens on")
    port: int = Field(8000, ge=0, le=65535, description="port the API listens on; 0 takes a free one")
    root_path: str | None = Field(
        None,
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        description="path under which a proxy serves the API, such as /ncp; the proxy must strip it from requests",
    )
    allowed_hosts: str | None = Field(
        None, description="additional host names, separated by commas, that a server without keys accepts"
    )
    trusted_proxies: str | None = Field(
        None,
        description="addresses or networks, separated by commas, of proxies whose `X-Forwarded-For` and "
        "`X-Forwarded-Proto` are believed; if not set, none",
    )
    data: Path = Field(Path("ncp-data"), description="folder for tensors, results and the embedded Redis")
    redis_url: str | None = Field(None, description="address of Redis; if not set, `ncp serve` starts its own")
    redis_server: Path | None = Field(
        None, description="Redis or Valkey executable to start instead of the packaged one"
    )
    workers: int = Field(1, ge=1, description="number of jobs that run at the same time on this machine")
    threads: int | None = Field(
        None, ge=1, description="threads per job; if not set, the number of cores divided by the number of workers"
    )
    max_tensor_bytes: int = Field(16 * GIB, ge=1, description="largest upload, in bytes")
    max_stored_bytes: int | None = Field(
        None, ge=1, description="bytes that an owner may store, tensors and results together; if not set, unlimited"
    )
    max_label_bytes: int = Field(
        64 << 20,
        ge=0,
        description="bytes that the labels of an owner's tensors and jobs may take in Redis; 0 means no limit",
    )
    max_live_jobs: int = Field(
        10_000, ge=0, description="jobs that an owner may have queued or running; 0 means no limit"
    )
    max_study_runs: int = Field(10_000, ge=0, description="largest number of runs in a study; 0 means 100,000")
    max_live_runs: int = Field(
        20_000,
        ge=0,
        description="unfinished runs that an owner's queued and running studies may have; 0 means no limit",
    )
    max_rank: int | None = Field(None, ge=1, description="largest rank of a job; if not set, unlimited")
    max_job_seconds: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="largest `stop.max_seconds` of a job, and its default",
    )
    max_requests_per_second: float = Field(
        50,
        ge=0,
        allow_inf_nan=False,
        description="average rate of requests per owner of a key, with bursts of ten seconds' worth; 0 means no limit",
    )
    max_job_memory_bytes: int = Field(
        8 * GIB, ge=1, description="memory that a job may use in addition to the mapped tensor"
    )
    lease_seconds: float = Field(15, gt=0, description="a worker that sends no heartbeat for this long loses its jobs")
    turn_seconds: float = Field(
        60,
        gt=0,
        allow_inf_nan=False,
        description="time after which a running job returns to the queue if an owner who has used less computing time "
        "waits; longer for a job that takes long to resume",
    )
    share_half_life_seconds: float = Field(
        3600,
        gt=0,
        allow_inf_nan=False,
        description="half-life of the computing time that counts for an owner's fair share of the workers; set it to "
        "the same value for all API and worker processes",
    )
    checkpoint_seconds: float = Field(10, ge=0, description="shortest time between two checkpoints of a job")
    checkpoint_share: float = Field(
        0.02,
        gt=0,
        le=1,
        description="largest fraction of a run's time spent on checkpoints; large checkpoints are written less often",
    )
    max_crashes: int = Field(
        3, ge=1, description="consecutive crashes of a job's process without any progress after which the job fails"
    )
    long_attempt_seconds: float = Field(
        600, gt=0, description="a crash after more computing time than this counts as a third of a crash"
    )
    cancel_seconds: float = Field(
        60,
        gt=0,
        description="time that a cancelled job has to finish its sweep before it is killed; its checkpoint is kept",
    )
    start_seconds: float = Field(
        600, gt=0, description="time that `ncp serve` has to become ready; the first start compiles the solvers"
    )
    stop_seconds: float = Field(
        60, gt=0, description="time that a stopping worker has to save its jobs and return them to the queue"
    )
    grace_seconds: float = Field(
        15, gt=0, description="time a sweep may still take when its worker stops, at most half of `NCP_STOP_SECONDS`"
    )
    drain_seconds: int = Field(
        10, ge=1, description="time that downloads and uploads may still take when the server stops"
    )
    reaper_seconds: float = Field(
        5, gt=0, description="time between two searches for jobs of dead workers, at most a third of a lease"
    )
    stalled_seconds: float = Field(
        20, gt=0, description="an idle worker that takes no messages for this long, or for two leases, is restarted"
    )
    verify_days: float = Field(
        7,
        ge=0,
        description="a job checks a large tensor against its SHA-256 if the last check is older than this, in days",
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
    renderers: int = Field(
        2,
        ge=1,
        description="renderers: processes that make exports, plots, tables and slices, one each at a time",
    )
    render_seconds: float = Field(
        300, gt=0, description="longest time that a renderer may take, and that a request may wait for one"
    )
    render_memory_bytes: int = Field(2 * GIB, ge=1 << 24, description="memory that a renderer may use")
    render_queue: int = Field(
        300, ge=1, description="requests that may wait for a renderer; more are answered with 503"
    )
    render_queue_per_owner: int = Field(
        100, ge=1, description="requests of one owner that may wait for a renderer; more are answered with 503"
    )
    render_cache_bytes: int = Field(
        GIB, ge=0, description="size of the exports, plots and tables that are stored for later requests; 0 stores none"
    )
    max_body_bytes: int = Field(1 << 20, ge=1, description="largest body of a request that is not an upload")
    idempotency_hours: float = Field(24, gt=0, description="how long an Idempotency-Key is remembered, in hours")
    stream_seconds: int = Field(300, ge=1, description="how long the live events of a finished job stay in Redis")
    event_buffer: int = Field(
        1000,
        ge=1,
        description="live events buffered per streaming client; a client that falls further behind reads stored events",
    )
    max_streams: int = Field(
        2000,
        ge=1,
        description="event streams that all owners together may have open at once; more are refused with 429",
    )
    max_streams_per_owner: int = Field(
        200, ge=1, description="event streams that one owner may have open at once; more are refused with 429"
    )
    keep_alive_seconds: float = Field(15, gt=0, description="time between keep-alive comments in an event stream")
    keep_jobs_days: float | None = Field(
        None, ge=0, description="delete finished jobs after this many days; if not set, never"
    )
    keep_tensors_days: float | None = Field(
        None, ge=0, description="delete tensors that have not been used for this many days; if not set, never"
    )
    tidy_seconds: float = Field(600, gt=0, description="time between two runs of the cleanup")
    min_free_bytes: int = Field(
        GIB // 4,
        ge=0,
        description="free disk space below which uploads are refused and the server reports that it is not ready",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        "info", description="minimum severity of log messages"
    )
    log_format: Annotated[Literal["human", "json"], BeforeValidator(_lower)] = Field(
        "human", description="human: readable lines; json: one JSON object per line"
    )
    slow_seconds: float = Field(
        30, gt=0, description="close a connection that transfers less than 16 KiB, or no complete header, in this time"
    )
    session_hours: float = Field(
        12, gt=0, le=8760, allow_inf_nan=False, description="how long a browser stays signed in"
    )
    max_connections: int = Field(
        10_000, ge=8, description="open connections to the API, at most what the limit on open files allows"
    )
    max_connections_per_address: int = Field(
        100,
        ge=1,
        description="connections per address on which no key was sent yet; does not apply to this machine and to "
        "trusted proxies",
    )
    cors_origins: str | None = Field(
        None, description="origins, separated by commas, whose pages may call the API from a browser; if not set, none"
    )

    @field_validator("redis_url")
    @classmethod
    def _names_a_redis(cls, value: str | None) -> str | None:
        if value is None:
            return None
        url = urlsplit(value)
        try:
            is_whole = bool(url.path) if url.scheme == "unix" else url.port != 0
        except ValueError:  # a port that is not a number, or too large
            is_whole = False
        if not is_whole or url.scheme not in ("redis", "rediss", "unix"):
            # The message does not repeat the address, which may contain a password.
            raise ValueError("is not the address of a Redis; write redis://host:6379/0 or unix:///path/to/socket")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: str | None) -> str | None:
        wrong = [origin for origin in _parts(value) if not ORIGIN.fullmatch(origin)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is not an origin; write https://host or https://host:port")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str | None) -> str | None:
        for part in _parts(value):
            try:
                ip_network(part)
            except ValueError as error:
                remedy = "write an address such as 127.0.0.1, or a network such as 10.1.0.0/16"
                raise ValueError(f"{part!r} is neither an address nor a network; {remedy}") from error
        return value

    @property
    def proxy_networks(self) -> list[str]:
        return [str(ip_network(part)) for part in _parts(self.trusted_proxies)]

    @property
    def allowed_origins(self) -> list[str]:
        return _parts(self.cors_origins)

    @property
    def threads_per_job(self) -> int:
        """Number of threads per job. By default the jobs share all cores."""
        return self.threads or max(1, available_cores() // self.workers)

    def environment(self) -> dict[str, str]:
        """Return the configuration as environment variables for another process."""
        values = self.model_dump(mode="json")
        return {f"NCP_{name.upper()}": str(value) for name, value in values.items() if value is not None}
