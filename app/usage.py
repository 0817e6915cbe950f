"""What the caller has taken of the server, and may take."""

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import JSONResponse, Response

from app.deps import Caller, Records
from app.refusals import refusals
from worker.limits import Limits, Usage

router = APIRouter(prefix="/v1/usage", tags=["server"])


class OwnUsage(Usage):
    """What you have taken, and your limits."""

    admin: bool = Field(description="whether your key opens /v1/admin")
    limits: Limits


@router.get("", response_model=OwnUsage, responses=refusals())
def get_usage(caller: Caller, records: Records) -> Response:
    """Your bytes, jobs and computing seconds, and your limits; null is no limit."""
    taken = records.usage(caller.owner).model_dump()
    return JSONResponse({**taken, "admin": caller.admin, "limits": caller.limits.model_dump()})
