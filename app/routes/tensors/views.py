"""GET …/slice and …/summary: the entries of a tensor, reduced to an amount that a page can draw."""

from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Owner, Tensors
from sparse_ncp.app.responses import Fix, Most
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.worker.operations.slices import Slice
from sparse_ncp.worker.operations.summaries import Summary

JSON = "application/json"
router = APIRouter(prefix=f"{API_PREFIX}/tensors/{{tensor_id}}", tags=["tensors"])


@router.get("/slice", response_model=Slice, responses=error_responses(404))
def get_slice(tensor_id: str, owner: Owner, tensors: Tensors, fix: Fix = "", most: Most = 256) -> Response:
    """Get a slice of the tensor. Some modes are held at an index; the others are whole or evenly thinned."""
    return Response(tensors.slice(owner, tensor_id, fix, most).model_dump_json(), media_type=JSON)


@router.get("/summary", response_model=Summary, responses=error_responses(404))
async def get_summary(tensor_id: str, request: Request, owner: Owner, tensors: Tensors) -> Response:
    """Get a histogram, a profile along every mode, and counts of missing, negative and zero entries.

    A summary is computed once and kept with the tensor. One is computed at a time; other calls do not wait.
    """
    found = await to_thread.run_sync(tensors.find_summary, owner, tensor_id)
    if found is None:
        turn = request.app.state.summarizing
        found = await to_thread.run_sync(tensors.summarize, owner, tensor_id, limiter=turn)
    return Response(found, media_type=JSON)
