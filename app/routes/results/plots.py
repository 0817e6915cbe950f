"""GET …/plots/{plot}: plots of a job."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Owner, Renderers
from sparse_ncp.app.routes.openapi import BINARY, error_responses
from sparse_ncp.app.streaming.rendered import rendered
from sparse_ncp.worker.rendering.jobs import JobPlot
from sparse_ncp.worker.rendering.jobs import PlotFormat as _PlotFormat

Plot = Annotated[
    Literal["convergence", "components"],
    Path(description="convergence: objective and relative error per iteration; components: one row of panels for each"),
]
PlotFormat = Annotated[_PlotFormat, Query(description="format of the file")]
MEDIA_TYPES = {"svg": "image/svg+xml", "png": "image/png", "pdf": "application/pdf"}
# Generators of clients that know no pictures read them as bytes, if the document offers bytes.
PICTURES: dict[str, Any] = {
    "content": {kind: {"schema": BINARY} for kind in (*MEDIA_TYPES.values(), "application/octet-stream")}
}
router = APIRouter(prefix=f"{API_PREFIX}/jobs/{{job_id}}", tags=["jobs"])


@router.get("/plots/{plot}", response_class=Response, responses={200: PICTURES, **error_responses(404, 409)})
async def get_plot(
    job_id: str, request: Request, plot: Plot, owner: Owner, renderers: Renderers, format: PlotFormat = "svg"
) -> Response:
    """Draw a plot. While the job runs, it shows the results so far: 409 for components before the first checkpoint."""
    return await rendered(request, renderers, JobPlot(owner, job_id, plot, format), MEDIA_TYPES[format])
