"""GET …/plots/{plot}: plots of a job."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Jobs, Owner
from sparse_ncp.app.routes.openapi import BINARY, error_responses
from sparse_ncp.solvers import History
from sparse_ncp.worker.operations.study_tables import labels_of

Plot = Annotated[
    Literal["convergence", "components"],
    Path(description="convergence: objective and relative error per iteration; components: one row of panels for each"),
]
PlotFormat = Annotated[Literal["svg", "png", "pdf"], Query(description="format of the file")]
MEDIA_TYPES = {"svg": "image/svg+xml", "png": "image/png", "pdf": "application/pdf"}
# Generators of clients that know no pictures read them as bytes, if the document offers bytes.
PICTURES: dict[str, Any] = {
    "content": {kind: {"schema": BINARY} for kind in (*MEDIA_TYPES.values(), "application/octet-stream")}
}
router = APIRouter(prefix=f"{API_PREFIX}/jobs/{{job_id}}", tags=["jobs"])


@router.get("/plots/{plot}", response_class=Response, responses={200: PICTURES, **error_responses(404, 409)})
def get_plot(job_id: str, plot: Plot, owner: Owner, jobs: Jobs, format: PlotFormat = "svg") -> Response:
    """Draw a plot. While the job runs, it shows the results so far: 409 for components before the first checkpoint."""
    from sparse_ncp.solvers.studies import plots  # what draws takes as long to load as the rest of the API

    if plot == "components":
        figure = plots.components(jobs.factors(owner, job_id), labels_of(jobs.axes(owner, job_id)))
    else:
        pages = jobs.history_pages(owner, job_id)
        rows = [(row.objective, row.relative_error, row.seconds, row.start) for page in pages for row in page]
        figure = plots.convergence(History(*zip(*rows, strict=True)))
    return Response(plots.render(figure, format), media_type=MEDIA_TYPES[format])
