"""GET …/table and …/plots/{plot} of a study."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Owner, Renderers
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.app.routes.results.plots import MEDIA_TYPES, PICTURES, PlotFormat
from sparse_ncp.app.streaming.rendered import rendered
from sparse_ncp.worker.operations.study_tables import PlotName
from sparse_ncp.worker.rendering.studies import StudyPlot, StudyTableFile
from sparse_ncp.worker.study_contract import StudyTable

Mode = Annotated[
    int | None,
    Query(
        ge=1,
        le=8,
        description="mode of sparsity and components, counted from 1; by default that of the reference, or 1",
    ),
]
TableFormat = Annotated[
    Literal["json", "csv", "latex"],
    Query(description="csv: numbers in full precision; latex: a table for a paper, with booktabs and siunitx"),
]
Plot = Annotated[
    PlotName,
    Path(
        description="of a comparison: objective against time, quality of the repeats, path along the weights; of a "
        "choice: choice; of both: components"
    ),
]
TABLE_TYPES = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "latex": "application/x-latex; charset=utf-8",
}
TEXT = {"type": "string"}
TABLES: dict[str, Any] = {"content": {"text/csv": {"schema": TEXT}, "application/x-latex": {"schema": TEXT}}}
router = APIRouter(prefix=f"{API_PREFIX}/studies/{{study_id}}", tags=["studies"])


@router.get("/table", response_model=StudyTable, responses={200: TABLES, **error_responses(404)})
async def get_table(
    study_id: str,
    request: Request,
    owner: Owner,
    renderers: Renderers,
    format: TableFormat = "json",
    mode: Mode = None,
) -> Response:
    """Get the table of a comparison: one row per cell, from the runs that have ended so far."""
    return await rendered(request, renderers, StudyTableFile(owner, study_id, format, mode), TABLE_TYPES[format])


@router.get("/plots/{plot}", response_class=Response, responses={200: PICTURES, **error_responses(404, 409)})
async def get_study_plot(
    study_id: str,
    request: Request,
    plot: Plot,
    owner: Owner,
    renderers: Renderers,
    format: PlotFormat = "svg",
    mode: Mode = None,
) -> Response:
    """Get a plot of the runs that have ended so far; 409 before there is anything to draw."""
    return await rendered(request, renderers, StudyPlot(owner, study_id, plot, format, mode), MEDIA_TYPES[format])
