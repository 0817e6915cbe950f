"""GET …/events: the event stream of a job or a study, each event once and in order for every client."""

from contextlib import nullcontext
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Broadcaster, Config, Jobs, Owner, Records, Studies
from sparse_ncp.app.errors.exceptions import AuthError
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.app.streaming.broadcast import EventStream
from sparse_ncp.app.streaming.recorded import EventSource
from sparse_ncp.app.streaming.sse import EventSourceResponse
from sparse_ncp.solvers import InvalidInput
from sparse_ncp.worker.contract import TERMINAL, parse_event_id
from sparse_ncp.worker.records.events import START

LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", pattern="^[0-9]{1,18}-[0-9]{1,18}$", description="resume after the last event seen"),
]
Follow = Annotated[
    bool,
    Query(description="false: return the events recorded so far, for clients that poll instead of opening a stream"),
]
EXAMPLE = 'id: 7-0\nevent: progress\ndata: {"iteration": 7, "objective": 1.5, ..., "phase": "exact"}\n\n'
STUDY_EXAMPLE = 'id: 7-0\nevent: run\ndata: {"job_id": "…", "state": "succeeded", "cell": 4, "repeat": 0, ...}\n\n'
router = APIRouter(prefix=API_PREFIX)


def _responses(example: str, kinds: str) -> dict[int | str, dict[str, Any]]:
    return {
        200: {"content": {"text/event-stream": {"example": example}}, "description": f"{kinds} events"},
        204: {"description": "The last event was sent before; do not connect again"},
        **error_responses(404, 429),
    }


@router.get(
    "/jobs/{job_id}/events",
    tags=["jobs"],
    response_class=StreamingResponse,
    responses=_responses(EXAMPLE, "progress, preparing, state and end"),
)
def watch_job(
    request: Request,
    job_id: str,
    owner: Owner,
    records: Records,
    jobs: Jobs,
    broadcaster: Broadcaster,
    config: Config,
    last_event_id: LastEventId = None,
    follow: Follow = True,
) -> Response:
    """Follow a job: `progress` for each iteration, `state` for each change of state, and `end` with the job."""
    job, after = records.jobs.get(owner, job_id), last_event_id or START
    if parse_event_id(after)[0] > (job.progress.iteration if job.progress else 0):
        raise _no_such_event("job")
    if job.state in TERMINAL and not jobs.events_after(job_id, after, 1):
        return Response(status_code=204)
    return _stream(request, jobs, broadcaster, job_id, after, config, owner, follow)


@router.get(
    "/studies/{study_id}/events",
    tags=["studies"],
    response_class=StreamingResponse,
    responses=_responses(STUDY_EXAMPLE, "run, progress, state and end"),
)
def watch_study(
    request: Request,
    study_id: str,
    owner: Owner,
    records: Records,
    studies: Studies,
    broadcaster: Broadcaster,
    config: Config,
    last_event_id: LastEventId = None,
    follow: Follow = True,
) -> Response:
    """Follow a study: `run` for each run that ends, `progress` of a choice, `state`, and `end` with the study."""
    study, after = records.studies.get(owner, study_id), last_event_id or START
    if parse_event_id(after)[0] > records.events.count_of_study(study_id):
        raise _no_such_event("study")
    if study.state in TERMINAL and not studies.events_after(study_id, after, 1):
        return Response(status_code=204)
    return _stream(request, studies, broadcaster, study_id, after, config, owner, follow)


def _no_such_event(kind: str) -> InvalidInput:
    return InvalidInput("Last-Event-ID", f"this {kind} has no such event", "send the id of the last event you received")


def _stream(
    request: Request,
    source: EventSource,
    broadcaster: Broadcaster,
    id: str,
    after: str,
    config: Config,
    owner: str,
    follow: bool,
) -> Response:
    def is_allowed() -> bool:
        try:
            return bool(request.app.state.identify(request).owner == owner)
        except AuthError:  # the key was revoked, or the session has ended
            return False

    stream = EventStream(source, broadcaster, id, after, config.keep_alive_seconds, is_allowed)
    if not follow:
        return EventSourceResponse(stream.recorded(), nullcontext())
    return EventSourceResponse(stream.stream(), broadcaster.limits.open(owner))
