"""Jobs: submit, look up, cancel, delete."""

import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from kombu.exceptions import OperationalError
from starlette.responses import Response

from app.answers import JobAnswer, JobPage, answer, answer_page
from app.deps import Caller, Config, Owner, Records, Store
from app.fit import check_fit, check_limits
from app.paging import Cursor, Limit
from app.problems import UnsupportedMedia
from app.refusals import refusals
from solvers.settings import MethodName
from worker.configuration import Configuration
from worker.contract import Job, JobRequest, JobState
from worker.logs import subject
from worker.wake import wake

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="the same key and body give the same job again, for NCP_IDEMPOTENCY_HOURS",
    ),
]
State = Annotated[JobState | None, Query(description="only jobs in this state")]
Method = Annotated[MethodName | None, Query(description="only jobs of this method")]
TensorId = Annotated[str | None, Query(max_length=200, description="only jobs on this tensor")]
log = logging.getLogger("ncp.jobs")
router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


async def only_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise UnsupportedMedia("A job is JSON.", "send it with Content-Type: application/json")


@router.post(
    "",
    status_code=202,
    response_model=JobAnswer,
    responses=refusals(400, 404, 409, 413, 415, 507),
    dependencies=[Depends(only_json)],
)
def submit_job(
    body: JobRequest, caller: Caller, records: Records, store: Store, config: Config, idempotency_key: Key = None
) -> Response:
    """Queue a decomposition. Everything that can be refused is refused now; the answer means the job is on disk."""
    owner = caller.owner
    earlier = records.replay(owner, body, idempotency_key) if idempotency_key else None
    if earlier is not None:
        return _accepted(earlier, replayed=True)
    check_limits(body, caller.limits)
    check_fit(body, owner, records, store, config.max_job_memory_bytes)
    job, replayed = records.submit(owner, body, idempotency_key, caller.limits, subject().request_id)
    subject().job_id = job.id
    if not replayed:
        _wake(config)
    return _accepted(job, replayed)


def _accepted(job: Job, replayed: bool) -> Response:
    headers = {"Location": f"/v1/jobs/{job.id}", **({"Idempotent-Replayed": "true"} if replayed else {})}
    return answer(job, 202, headers)


def _wake(config: Configuration) -> None:
    """The job is durable whether or not this arrives: workers look for lost wake-ups by themselves."""
    try:
        wake(config)
    except OperationalError as error:
        log.warning("no worker was woken, one will look by itself: %s", error)


@router.get("", response_model=JobPage, responses=refusals())
def list_jobs(
    request: Request,
    owner: Owner,
    records: Records,
    state: State = None,
    method: Method = None,
    tensor_id: TensorId = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Your own jobs, newest first."""
    page = records.jobs(owner, state=state, method=method, tensor_id=tensor_id, limit=limit, cursor=cursor)
    return answer_page(request, page)


@router.get("/{job_id}", response_model=JobAnswer, responses=refusals(404))
def get_job(job_id: str, owner: Owner, records: Records) -> Response:
    """A job: its state, its progress, its place in the queue; once it has ended, its result or error."""
    return answer(records.job(owner, job_id))


@router.post("/{job_id}/cancel", status_code=202, response_model=JobAnswer, responses=refusals(404))
def cancel_job(job_id: str, owner: Owner, records: Records) -> Response:
    """Stop within one sweep, or NCP_CANCEL_SECONDS. What was computed stays downloadable; again changes nothing."""
    return answer(records.cancel(owner, job_id), 202)


@router.delete("/{job_id}", status_code=204, responses=refusals(404, 409))
def delete_job(job_id: str, owner: Owner, records: Records, store: Store) -> Response:
    """Delete a finished job with its factors and history."""
    records.delete_job(owner, job_id)
    store.remove_job(job_id)
    return Response(status_code=204)
