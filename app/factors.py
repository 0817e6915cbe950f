"""The factors, in the formats a lab reads."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from app.deps import Owner, Records, Store
from app.files import serve_file
from app.refusals import refusals
from worker.contract import TERMINAL
from worker.errors import NotFound, NotYet

Format = Annotated[Literal["npz", "mat"], Query(description="npz for numpy, mat for MATLAB; both name them A1 … AN")]
Mode = Annotated[int, Path(ge=1, description="counted from 1")]
DOCUMENTED = refusals(304, 400, 404, 409, 416)
router = APIRouter(prefix="/v1/jobs/{job_id}/factors", tags=["factors"])


@router.head("", include_in_schema=False)
@router.get("", response_class=Response, responses=DOCUMENTED)
def get_factors(
    job_id: str, request: Request, owner: Owner, records: Records, store: Store, format: Format = "npz"
) -> Response:
    """All factors in one file. While the job runs they are its last checkpoint's."""
    return _serve(request, records, store, owner, job_id, f"factors.{format}")


@router.head("/{mode}", include_in_schema=False)
@router.get("/{mode}", response_class=Response, responses=DOCUMENTED)
def get_factor(job_id: str, mode: Mode, request: Request, owner: Owner, records: Records, store: Store) -> Response:
    """The factor of one mode as `.npy`, its shape length × rank."""
    return _serve(request, records, store, owner, job_id, f"A{mode}.npy")


def _serve(request: Request, records: Records, store: Store, owner: str, job_id: str, name: str) -> Response:
    job = records.job(owner, job_id)
    try:
        return store.job(job.id).with_factors(
            name, lambda file: serve_file(request, file.path, file.sha256, f"{job_id}-{name}")
        )
    except NotYet as error:
        if job.state in TERMINAL:
            raise NotFound("factors", job_id) from error  # it ended before its first checkpoint
        raise
