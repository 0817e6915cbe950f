"""GET …/table and …/plots/{plot} of a study."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Owner, Records, Studies
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.app.routes.results.plots import MEDIA_TYPES, PICTURES, PlotFormat
from sparse_ncp.solvers.studies.table_text import to_csv, to_latex
from sparse_ncp.worker.operations.study_tables import PlotName
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
TEXT = {"type": "string"}
TABLES: dict[str, Any] = {"content": {"text/csv": {"schema": TEXT}, "application/x-latex": {"schema": TEXT}}}
router = APIRouter(prefix=f"{API_PREFIX}/studies/{{study_id}}", tags=["studies"])


@router.get("/table", response_model=StudyTable, responses={200: TABLES, **error_responses(404)})
def get_table(
    study_id: str, owner: Owner, records: Records, studies: Studies, format: TableFormat = "json", mode: Mode = None
) -> Response:
    """Get the table of a comparison: one row per cell, from the runs that have ended so far."""
    table = studies.tables.table(records.studies.get(owner, study_id), mode)
    if format == "csv":
        return Response(to_csv(table.rows), media_type="text/csv; charset=utf-8")
    if format == "latex":
        return Response(to_latex(table.rows), media_type="application/x-latex; charset=utf-8")
    return Response(table.model_dump_json(), media_type="application/json")


@router.get("/plots/{plot}", response_class=Response, responses={200: PICTURES, **error_responses(404, 409)})
def get_study_plot(
    study_id: str,
    plot: Plot,
    owner: Owner,
    records: Records,
    studies: Studies,
    format: PlotFormat = "svg",
    mode: Mode = None,
) -> Response:
    """Get a plot of the runs that have ended so far; 409 before there is anything to draw."""
    from sparse_ncp.solvers.studies import plots  # matplotlib takes as long to load as the rest of the API

    figure = studies.tables.figure(records.studies.get(owner, study_id), plot, mode)
    return Response(plots.render(figure, format), media_type=MEDIA_TYPES[format])
