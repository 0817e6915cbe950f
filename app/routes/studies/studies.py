"""Studies: submit, list, get, cancel, delete."""

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Caller, Owner, Records, Renderers, Studies, only_json
from sparse_ncp.app.responses import Cursor, Limit, StudyAnswer, StudyPage, answer, answer_page, public_path
from sparse_ncp.app.routes.jobs import Key
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.app.streaming.rendered import rendered
from sparse_ncp.worker.logs import log_context
from sparse_ncp.worker.rendering.studies import StudyRecord
from sparse_ncp.worker.study_contract import StudyRequest

router = APIRouter(prefix=f"{API_PREFIX}/studies", tags=["studies"])


@router.post(
    "",
    status_code=202,
    response_model=StudyAnswer,
    responses=error_responses(400, 404, 409, 413, 415, 504, 507),
    dependencies=[Depends(only_json)],
)
def submit_study(
    request: Request, body: StudyRequest, caller: Caller, studies: Studies, idempotency_key: Key = None
) -> Response:
    """Queue the runs of a study. The response is sent once all of them are on disk."""
    try:
        study, replayed = studies.submit(caller.owner, body, idempotency_key, caller.limits, log_context().request_id)
    except ValidationError as error:  # raised by a cell of the grid
        sent = body.model_dump(mode="json", by_alias=True, exclude_unset=True)
        raise RequestValidationError(error.errors(include_url=False), body=sent) from error
    headers = {"Location": public_path(request, f"{router.prefix}/{study.id}")}
    if replayed:
        headers["Idempotent-Replayed"] = "true"
    return answer(study, 202, headers)


@router.get("", response_model=StudyPage, responses=error_responses())
def list_studies(
    request: Request, owner: Owner, records: Records, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """List your studies, newest first, without their tables."""
    return answer_page(request, records.studies.list(owner, limit, cursor))


@router.get("/{study_id}", response_model=StudyAnswer, responses=error_responses(404))
async def get_study(study_id: str, request: Request, owner: Owner, renderers: Renderers) -> Response:
    """Get a study: its state and runs, the time left, and its table or advice."""
    return await rendered(request, renderers, StudyRecord(owner, study_id), "application/json")


@router.post("/{study_id}/cancel", status_code=202, response_model=StudyAnswer, responses=error_responses(404, 504))
def cancel_study(study_id: str, owner: Owner, records: Records) -> Response:
    """Cancel a study: no further run starts, running ones end within a sweep, and results are kept."""
    return answer(records.studies.cancel(owner, study_id), 202)


@router.delete("/{study_id}", status_code=204, responses=error_responses(404, 409, 504))
def delete_study(study_id: str, owner: Owner, studies: Studies) -> Response:
    """Delete a study that has ended, with its runs, factors and histories."""
    studies.delete(owner, study_id)
    return Response(status_code=204)
