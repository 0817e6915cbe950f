"""What only an admin sees: every owner, the whole queue, and how to stop any job."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import AwareDatetime, BaseModel, Field
from starlette.responses import JSONResponse, Response

from app.deps import Admin, Config, Records
from app.jobs import State
from app.paging import Cursor, Limit
from app.refusals import refusals
from worker.contract import Job
from worker.key_files import KeyFiles
from worker.limits import UNLIMITED, Limits, Usage

OwnerName = Annotated[str, Path(max_length=200)]
router = APIRouter(prefix="/v1/admin", tags=["admin"])


class OwnedJob(Job):
    """A job and whose it is."""


class OwnedJobPage(BaseModel):
    items: list[OwnedJob]
    next: str | None


class OwnerAnswer(Usage):
    """Somebody who has a key, or had one and left something here."""

    has_key: bool
    admin: bool
    key_created_at: AwareDatetime | None
    key_last_used_at: AwareDatetime | None = Field(description="to the minute")
    limits: Limits = Field(description="the key's own; what it leaves out is the server's")


class Waiting(BaseModel):
    owner: str
    queued: int
    running: int


class QueueAnswer(BaseModel):
    """Who waits and who runs, in the order of their names."""

    owners: list[Waiting]
    queued: int
    running: int
    live_workers: int


@router.get("/owners", response_model=list[OwnerAnswer], responses=refusals(404))
def list_owners(admin: Admin, records: Records, config: Config) -> list[OwnerAnswer]:
    """Everybody, with what they have taken."""
    keys = {key.name: key for key in KeyFiles(config.data).all()}
    answers = []
    for usage in records.usages(sorted(records.owners() | keys.keys())):
        key = keys.get(usage.owner)
        answers.append(
            OwnerAnswer(
                **usage.model_dump(),
                has_key=key is not None,
                admin=key is not None and key.admin,
                key_created_at=key and key.created_at,
                key_last_used_at=key and key.last_used_at,
                limits=key.limits if key else UNLIMITED,
            )
        )
    return answers


@router.get("/queue", response_model=QueueAnswer, responses=refusals(404))
def get_queue(admin: Admin, records: Records) -> QueueAnswer:
    """How many jobs wait and run, whose they are, and how many workers there are."""
    everybody = records.usages(sorted(records.owners()))
    busy = [
        Waiting(owner=usage.owner, queued=usage.jobs.queued, running=usage.jobs.running)
        for usage in everybody
        if usage.jobs.queued or usage.jobs.running
    ]
    return QueueAnswer(
        owners=busy,
        queued=sum(one.queued for one in busy),
        running=sum(one.running for one in busy),
        live_workers=records.live_workers(),
    )


@router.get("/owners/{owner}/jobs", response_model=OwnedJobPage, responses=refusals(404))
def list_jobs_of(
    owner: OwnerName,
    admin: Admin,
    records: Records,
    state: State = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """One owner's jobs, newest first."""
    page = records.jobs(owner, state=state, limit=limit, cursor=cursor)
    return JSONResponse({"items": [job.model_dump(mode="json") for job in page.items], "next": page.next})


@router.post("/jobs/{job_id}/cancel", status_code=202, response_model=OwnedJob, responses=refusals(404))
def cancel_any_job(job_id: str, admin: Admin, records: Records) -> Response:
    """Cancel a job, whoever it belongs to."""
    job = records.cancel(records.owner_of_job(job_id), job_id)
    return JSONResponse(job.model_dump(mode="json"), 202)
