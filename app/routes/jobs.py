"""Jobs: submit, estimate, list, get, rename, cancel, delete; the history of every iteration."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Caller, Jobs, Owner, Records, only_json
from sparse_ncp.app.errors.exceptions import InvalidRequest
from sparse_ncp.app.errors.handlers import field_problems_of
from sparse_ncp.app.errors.problem import FieldProblem
from sparse_ncp.app.responses import (
    Cursor,
    JobAnswer,
    JobPage,
    Limit,
    NamePart,
    NewName,
    answer,
    answer_page,
    next_link,
    public_path,
)
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.app.routes.submissions import Submissions
from sparse_ncp.app.streaming.history import history_response
from sparse_ncp.solvers import Settings
from sparse_ncp.solvers.runtime import MethodName
from sparse_ncp.worker.contract import JobRequest, JobState, Progress
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.logs import log_context
from sparse_ncp.worker.records.jobs import Submission

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
StudyId = Annotated[str | None, Query(max_length=200, description="only the runs of this study")]
After = Annotated[int, Query(ge=0, le=10**18, description="only iterations after this one")]
HistoryLimit = Annotated[
    int | None, Query(ge=1, le=10_000, description="iterations on a page; by default all of them in one response")
]
Format = Annotated[Literal["json", "csv"], Query(description="json: a list of objects; csv: one line per iteration")]
CSV: dict[str, Any] = {"content": {"text/csv": {"schema": {"type": "string"}}}}
NEXT_LINK = {"Link": {"description": "the next page, if there is one", "schema": {"type": "string"}}}


class ReportEverything(APIRoute):
    """Adds the problems that only the records show to those of the schema, so that one response has all of them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_or_report(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                caller, jobs = request.state.caller, request.app.state.jobs
                try:
                    arguments = caller.owner, error.body, caller.limits
                    problems = await to_thread.run_sync(jobs.problems_of_invalid, *arguments)
                except Unavailable:
                    raise error from None  # what is wrong with the schema needs no Redis
                raise InvalidRequest(error, problems) from error

        return handle_or_report


router = APIRouter(prefix=f"{API_PREFIX}/jobs", tags=["jobs"], route_class=ReportEverything)


@router.post(
    "",
    status_code=202,
    response_model=JobAnswer,
    responses=error_responses(400, 404, 409, 413, 415, 504, 507),
    dependencies=[Depends(only_json)],
)
async def submit_job(request: Request, body: JobRequest, caller: Caller, idempotency_key: Key = None) -> Response:
    """Queue a decomposition. All checks are made now; the response is sent once the job is on disk."""
    submission = Submission(caller.owner, body, idempotency_key, caller.limits, log_context().request_id)
    submissions: Submissions = request.app.state.submissions
    job, replayed = await submissions.submit(submission)
    log_context().job_id = job.id
    headers = {"Location": public_path(request, f"{router.prefix}/{job.id}")}
    if replayed:
        headers["Idempotent-Replayed"] = "true"
    return answer(job, 202, headers)


class MemoryEstimate(BaseModel):
    """The memory of one job. The tensor does not count, since it is mapped from its file."""

    needed_bytes: int | None = Field(description="an upper estimate; null if the tensor's bytes cannot be read")
    limit_bytes: int = Field(description="what a job may take: NCP_MAX_JOB_MEMORY_BYTES")


class JobEstimate(BaseModel):
    """The memory that a job would need, and the settings it would run with."""

    memory: MemoryEstimate
    refused: list[FieldProblem] = Field(description="why the job would be refused now; empty if it would be queued")
    warnings: tuple[str, ...] = Field(description="advice about a job that would be queued, as the job shows it")
    settings: Settings = Field(description="all settings that the job would run with, as the job shows them")


@router.post(
    "/estimate",
    response_model=JobEstimate,
    responses=error_responses(400, 404, 413, 415),
    dependencies=[Depends(only_json)],
)
def estimate_job(body: JobRequest, caller: Caller, jobs: Jobs) -> JobEstimate:
    """Estimate the memory of a job and check its settings. Nothing is queued.

    An invalid body or an unknown tensor is refused as by `POST /v1/jobs`.
    """
    found = jobs.estimate(caller.owner, body, caller.limits)
    memory = MemoryEstimate(needed_bytes=found.memory_bytes, limit_bytes=found.memory_limit_bytes)
    refused = field_problems_of(found.problems)
    return JobEstimate(memory=memory, refused=refused, warnings=found.warnings, settings=found.settings)


@router.get("", response_model=JobPage, responses=error_responses())
def list_jobs(
    request: Request,
    owner: Owner,
    records: Records,
    state: State = None,
    method: Method = None,
    tensor_id: TensorId = None,
    name: NamePart = None,
    study_id: StudyId = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List your jobs, newest first."""
    page = records.jobs.list(owner, state, method, tensor_id, study_id, name, limit, cursor)
    return answer_page(request, page)


@router.get("/{job_id}", response_model=JobAnswer, responses=error_responses(404))
def get_job(job_id: str, owner: Owner, records: Records) -> Response:
    """Get a job: its state, progress and place in the queue, and its result or error once it has ended."""
    return answer(records.jobs.get(owner, job_id))


@router.patch(
    "/{job_id}",
    response_model=JobAnswer,
    responses=error_responses(400, 404, 413, 415, 504),
    dependencies=[Depends(only_json)],
)
def rename_job(job_id: str, body: NewName, owner: Owner, records: Records) -> Response:
    """Rename a job in any state, or remove its name."""
    return answer(records.jobs.rename(owner, job_id, body.name))


@router.post("/{job_id}/cancel", status_code=202, response_model=JobAnswer, responses=error_responses(404, 504))
def cancel_job(job_id: str, owner: Owner, records: Records) -> Response:
    """Cancel a job within one sweep, or NCP_CANCEL_SECONDS. Its last factors can still be downloaded."""
    return answer(records.jobs.cancel(owner, job_id), 202)


@router.delete("/{job_id}", status_code=204, responses=error_responses(404, 409, 504))
def delete_job(job_id: str, owner: Owner, jobs: Jobs) -> Response:
    """Delete a finished job with its factors and history."""
    jobs.delete(owner, job_id)
    return Response(status_code=204)


@router.get(
    "/{job_id}/history",
    response_model=list[Progress],
    responses={200: {**CSV, "headers": NEXT_LINK}, **error_responses(404)},
)
def get_history(
    request: Request,
    job_id: str,
    owner: Owner,
    jobs: Jobs,
    after: After = 0,
    limit: HistoryLimit = None,
    format: Format = "json",
) -> Response:
    """Get every iteration once and in order, as in the event stream: in pages with `limit`, otherwise all at once.

    Every page but the last has a `Link` header with `rel="next"`.
    """
    if limit is None:
        return history_response(jobs.history_pages(owner, job_id, after), format, request.method)
    rows = jobs.history(owner, job_id, after, limit + 1)
    response = history_response(iter([rows[:limit]] if rows else []), format, request.method)
    if len(rows) > limit:
        response.headers["Link"] = next_link(request, after=rows[limit - 1].iteration)
    return response
