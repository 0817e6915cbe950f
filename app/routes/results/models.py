"""GET …/diagnostics, …/stability, …/comparison and …/model: how far a job's model can be trusted, and slices of it."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Models, Owner, Renderers
from sparse_ncp.app.responses import Fix, Most
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.app.streaming.rendered import rendered
from sparse_ncp.solvers import Diagnostics
from sparse_ncp.worker.contract import JobStability
from sparse_ncp.worker.operations.models import JobComparison
from sparse_ncp.worker.operations.models import ModelSlice as ModelSliceAnswer
from sparse_ncp.worker.rendering.jobs import ModelComparison, ModelSlice

Other = Annotated[str, Query(description="the job to compare with, on a tensor of the same shape")]
JSON = "application/json"
router = APIRouter(prefix=f"{API_PREFIX}/jobs/{{job_id}}", tags=["models"])


@router.get("/diagnostics", response_model=Diagnostics, responses=error_responses(404, 409))
def get_diagnostics(job_id: str, owner: Owner, models: Models) -> Response:
    """Get core consistency, shares and congruence of the components, and residual and leverage of every index."""
    return Response(models.diagnostics(owner, job_id), media_type=JSON)


@router.get("/stability", response_model=JobStability, responses=error_responses(404, 409))
def get_stability(job_id: str, owner: Owner, models: Models) -> Response:
    """Get the stability of every component in resampled samples, and a band of 5 to 95 % for every loading."""
    return Response(models.stability(owner, job_id), media_type=JSON)


@router.get("/comparison", response_model=JobComparison, responses=error_responses(404, 409))
async def get_comparison(job_id: str, request: Request, owner: Owner, renderers: Renderers, other: Other) -> Response:
    """Compare the model with that of another job: matched components, errors, and scores of excluded indices."""
    return await rendered(request, renderers, ModelComparison(owner, job_id, other), JSON)


@router.get("/model", response_model=ModelSliceAnswer, responses=error_responses(404, 409))
async def get_model(
    job_id: str, request: Request, owner: Owner, renderers: Renderers, fix: Fix = "", most: Most = 256
) -> Response:
    """Get a slice of the model, the tensor and the residual. While the job runs, the model is its last checkpoint."""
    return await rendered(request, renderers, ModelSlice(owner, job_id, fix, most), JSON)
