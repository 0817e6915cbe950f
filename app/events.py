"""The event stream of a job (SSE): every iteration once and in order, whoever connects when."""

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.deps import Config, Live, Owner, Records
from app.follow import Follower
from app.refusals import refusals
from worker.contract import TERMINAL
from worker.errors import DoesNotFit
from worker.event_records import START, parse_event_id

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", pattern="^[0-9]{1,18}-[0-9]{1,18}$", description="resume after the last event seen"),
]
EXAMPLE = 'id: 7-0\nevent: progress\ndata: {"iteration": 7, "objective": 1.5, ..., "phase": "exact"}\n\n'
router = APIRouter(prefix="/v1/jobs/{job_id}/events", tags=["jobs"])


@router.get(
    "",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"example": EXAMPLE}}, "description": "progress, state and end events"},
        204: {"description": "You have seen the end: do not connect again"},
        **refusals(404),
    },
)
def watch_job(
    job_id: str, owner: Owner, records: Records, live: Live, config: Config, last_event_id: LastEventId = None
) -> Response:
    """`progress` once per iteration, `state` on changes, `end` last with the job; then the stream ends."""
    job, after = records.job(owner, job_id), last_event_id or START
    if parse_event_id(after)[0] > (job.progress.iteration if job.progress else 0):
        raise DoesNotFit(
            "Last-Event-ID", "this job has had no such event", "send the id of the last event you received"
        )
    if job.state in TERMINAL and not records.events_after(job_id, after, 1):
        return Response(status_code=204)
    follower = Follower(records, live, job_id, after, config.keep_alive_seconds)
    return EventStream(follower.stream(), media_type="text/event-stream", headers=HEADERS)


class EventStream(StreamingResponse):
    """HEAD is answered at once: the body that it leaves out would last as long as the job."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await Response(headers=dict(self.headers))(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)
