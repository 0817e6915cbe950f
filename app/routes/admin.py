"""Routes for admins: every owner, the whole queue, workers and disk, cancel any job."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import AwareDatetime, BaseModel, Field
from starlette.responses import JSONResponse, Response

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Admin, Config, Records, Store
from sparse_ncp.app.responses import Cursor, Limit
from sparse_ncp.app.routes.jobs import State
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.worker.contract import Job, Usage
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits, OwnerShare

OwnerName = Annotated[str, Path(max_length=200)]
router = APIRouter(prefix=f"{API_PREFIX}/admin", tags=["admin"])


class OwnedJob(Job):
    """A job with its owner."""


class OwnedJobPage(BaseModel):
    items: list[OwnedJob]
    next: str | None


class OwnerAnswer(Usage):
    """An owner who has a key, or who had one and still has records."""

    has_key: bool
    admin: bool
    key_created_at: AwareDatetime | None
    key_last_used_at: AwareDatetime | None = Field(description="to the minute")
    limits: Limits = Field(description="limits of the key, or of the server where the key has none")
    sharing: OwnerShare | None = Field(
        description="share of the computing time, weight, and whether the operator has paused the owner; null for an "
        "owner without any record"
    )
    own_limits: list[str] = Field(description="names of the limits that the key sets itself; null then means no limit")


class Waiting(BaseModel):
    owner: str
    queued: int
    running: int


class QueueAnswer(BaseModel):
    """Queued and running jobs of each owner, by name."""

    owners: list[Waiting]
    queued: int
    running: int
    live_workers: int


class WorkerAnswer(BaseModel):
    name: str
    last_seen_at: AwareDatetime


class DiskAnswer(BaseModel):
    """The disk of the data folder."""

    total_bytes: int
    free_bytes: int
    min_free_bytes: int = Field(description="uploads are refused if less would be left: NCP_MIN_FREE_BYTES")
    stored_bytes: dict[str, int] = Field(
        description="of tensors, jobs and uploads, measured once a minute; empty before the first time"
    )


class ServerAnswer(BaseModel):
    """The workers and the disk of the server, and the jobs that run."""

    version: str
    workers: list[WorkerAnswer] = Field(description="workers that have sent a heartbeat recently")
    running: list[OwnedJob] = Field(description="running jobs of all owners, the oldest first")
    oldest_queued_seconds: float = Field(description="waiting time of the oldest queued job; 0 if none is queued")
    disk: DiskAnswer


@router.get("/owners", response_model=list[OwnerAnswer], responses=error_responses(404))
def list_owners(admin: Admin, records: Records, config: Config) -> list[OwnerAnswer]:
    """List all owners with their usage and limits."""
    keys = {key.name: key for key in ApiKeys(config.data).all()}
    shares = {share.owner: share for share in records.owners.shares()}
    answers = []
    for usage in records.stats.usages(sorted(records.stats.owners() | keys.keys())):
        key = keys.get(usage.owner)
        answers.append(
            OwnerAnswer(
                **usage.model_dump(),
                has_key=key is not None,
                admin=key is not None and key.admin,
                key_created_at=key and key.created_at,
                key_last_used_at=key and key.last_used_at,
                limits=key.limits if key else UNLIMITED,
                sharing=shares.get(usage.owner),
                own_limits=sorted(key.limits.given) if key else [],
            )
        )
    return answers


@router.get("/queue", response_model=QueueAnswer, responses=error_responses(404))
def get_queue(admin: Admin, records: Records) -> QueueAnswer:
    """Get the numbers of queued and running jobs for each owner, and the number of workers."""
    everybody = records.stats.usages(sorted(records.stats.owners()))
    busy = [
        Waiting(owner=usage.owner, queued=usage.jobs.queued, running=usage.jobs.running)
        for usage in everybody
        if usage.jobs.queued or usage.jobs.running
    ]
    return QueueAnswer(
        owners=busy,
        queued=sum(one.queued for one in busy),
        running=sum(one.running for one in busy),
        live_workers=records.workers.live_count(),
    )


@router.get("/server", response_model=ServerAnswer, responses=error_responses(404))
def get_server(admin: Admin, request: Request, records: Records, store: Store, config: Config) -> Response:
    """Get the workers, the running jobs of all owners, and the disk."""
    disk = DiskAnswer(
        total_bytes=store.total_bytes(),
        free_bytes=store.free_bytes(),
        min_free_bytes=config.min_free_bytes,
        stored_bytes=dict(request.app.state.store_size.by_kind()),
    )
    found = ServerAnswer(
        version=request.app.version,
        workers=[WorkerAnswer(name=name, last_seen_at=seen) for name, seen in records.workers.live().items()],
        running=[OwnedJob.model_validate(job.model_dump()) for job in records.stats.running_jobs()],
        oldest_queued_seconds=records.stats.queue().oldest_queued_seconds,
        disk=disk,
    )
    return JSONResponse(found.model_dump(mode="json"))


@router.get("/owners/{owner}/jobs", response_model=OwnedJobPage, responses=error_responses(404))
def list_jobs_of(
    owner: OwnerName,
    admin: Admin,
    records: Records,
    state: State = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List the jobs of an owner, newest first."""
    page = records.jobs.list(owner, state=state, limit=limit, cursor=cursor)
    return JSONResponse({"items": [job.model_dump(mode="json") for job in page.items], "next": page.next})


@router.post("/jobs/{job_id}/cancel", status_code=202, response_model=OwnedJob, responses=error_responses(404, 504))
def cancel_any_job(job_id: str, admin: Admin, records: Records) -> Response:
    """Cancel a job of any owner."""
    job = records.jobs.cancel(records.jobs.owner_of(job_id), job_id)
    return JSONResponse(job.model_dump(mode="json"), 202)
