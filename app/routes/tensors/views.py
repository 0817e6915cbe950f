"""GET …/slice and …/summary: the entries of a tensor, reduced to an amount that a page can draw."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Owner, Renderers
from sparse_ncp.app.responses import Fix, Most
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.app.streaming.rendered import rendered
from sparse_ncp.worker.operations.slices import Slice
from sparse_ncp.worker.operations.summaries import Summary
from sparse_ncp.worker.rendering.tensors import TensorSlice, TensorSummary

JSON = "application/json"
router = APIRouter(prefix=f"{API_PREFIX}/tensors/{{tensor_id}}", tags=["tensors"])


@router.get("/slice", response_model=Slice, responses=error_responses(404))
async def get_slice(
    tensor_id: str, request: Request, owner: Owner, renderers: Renderers, fix: Fix = "", most: Most = 256
) -> Response:
    """Get a slice of the tensor. Some modes are fixed at an index; the others are whole or evenly thinned."""
    return await rendered(request, renderers, TensorSlice(owner, tensor_id, fix, most), JSON)


@router.get("/summary", response_model=Summary, responses=error_responses(404))
async def get_summary(tensor_id: str, request: Request, owner: Owner, renderers: Renderers) -> Response:
    """Get a histogram, a profile along every mode, and counts of missing, negative and zero entries.

    A summary is computed once and kept with the tensor.
    """
    return await rendered(request, renderers, TensorSummary(owner, tensor_id), JSON)
