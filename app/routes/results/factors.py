"""GET …/factors: the factors of a job as npz, mat, csv, NetCDF or npy."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Jobs, Owner, Renderers
from sparse_ncp.app.routes.openapi import binary_responses, error_responses
from sparse_ncp.app.streaming.download import BYTES, serve_file
from sparse_ncp.app.streaming.rendered import rendered_file
from sparse_ncp.solvers import InvalidInput
from sparse_ncp.worker.contract import Axis, Export
from sparse_ncp.worker.contract import Format as _Format
from sparse_ncp.worker.contract import Order as _Order
from sparse_ncp.worker.contract import Scale as _Scale
from sparse_ncp.worker.contract import Zeros as _Zeros
from sparse_ncp.worker.rendering.jobs import FactorsExport, FactorsFile

Format = Annotated[
    _Format,
    Query(
        description="npz: numpy; mat: MATLAB; csv: a table per mode, in a zip archive; nc: NetCDF 3, for xarray and R"
    ),
]
Scale = Annotated[
    _Scale,
    Query(description="none: columns as in the run; unit: norm 1; max: maximum 1. Multiply unit and max by `weights`"),
]
Order = Annotated[_Order, Query(description="none: as in the run; share: the largest component first")]
Zeros = Annotated[_Zeros, Query(description="drop: leave out components below a millionth of the tensor's norm")]
OneMode = Annotated[
    int | None, Query(ge=1, description="csv: only the table of this mode, without an archive; counted from 1")
]
Mode = Annotated[int, Path(ge=1, description="counted from 1")]
MEDIA_TYPES: Mapping[str, str] = {"npz": BYTES, "mat": BYTES, "csv": "application/zip", "nc": "application/x-netcdf"}
TABLE = "text/csv"
HEADERS: dict[str, Any] = {
    "Factors-Iteration": {"schema": {"type": "integer"}, "description": "iteration of the factors"}
}
ERRORS = error_responses(304, 400, 404, 409, 412, 416)
ALL = {**binary_responses(BYTES, "application/zip", "application/x-netcdf", TABLE, headers=HEADERS), **ERRORS}
ONE = {**binary_responses(BYTES, headers=HEADERS), **ERRORS}
router = APIRouter(prefix=f"{API_PREFIX}/jobs/{{job_id}}", tags=["factors"])


@router.head("/factors", include_in_schema=False)
@router.get("/factors", response_class=Response, responses=ALL)
async def get_factors(
    job_id: str,
    request: Request,
    owner: Owner,
    renderers: Renderers,
    format: Format = "npz",
    scale: Scale = "none",
    order: Order = "none",
    zeros: Zeros = "keep",
    mode: OneMode = None,
) -> Response:
    """Download all factors in one file. While the job runs, they are those of its last checkpoint."""
    if mode is not None and format != "csv":
        raise InvalidInput(
            "mode", "is only valid with format=csv", f"leave it out, or ask for {request.url.path}/{mode}"
        )
    asked = Export(format=format, scale=scale, order=order, zeros=zeros, mode=mode)
    name = asked.stored_name
    rendering = FactorsFile(owner, job_id, name) if name else FactorsExport(owner, job_id, asked)
    opened = await rendered_file(request, renderers, rendering)
    if mode is not None:
        return serve_file(request, opened, f"{job_id}-A{mode}.csv", f"{TABLE}; charset=utf-8")
    ending = "csv.zip" if format == "csv" else format
    return serve_file(request, opened, f"{job_id}-factors.{ending}", MEDIA_TYPES[format])


@router.head("/factors/{mode}", include_in_schema=False)
@router.get("/factors/{mode}", response_class=Response, responses=ONE)
async def get_factor(job_id: str, mode: Mode, request: Request, owner: Owner, renderers: Renderers) -> Response:
    """Download the factor of one mode as `.npy`, an array of shape length × rank."""
    opened = await rendered_file(request, renderers, FactorsFile(owner, job_id, f"A{mode}.npy"))
    return serve_file(request, opened, f"{job_id}-A{mode}.npy")


@router.get("/axes", response_model=list[Axis], responses=error_responses(404))
def get_job_axes(job_id: str, owner: Owner, jobs: Jobs) -> Any:
    """Get the labels that the tensor had when the job was submitted; empty if it had none."""
    return jobs.axes(owner, job_id) or []
