"""Samples: tensors that the server makes, for those who have none at hand."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Caller, Config, Records, Store, Tensors
from sparse_ncp.app.responses import TensorAnswer, answer, public_path
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.app.streaming.upload import check_length
from sparse_ncp.worker.operations.reservations import Reservation
from sparse_ncp.worker.operations.samples import SAMPLES, sample_content

router = APIRouter(prefix=f"{API_PREFIX}/samples", tags=["tensors"])


class SampleAnswer(BaseModel):
    """A tensor that the server can make."""

    name: str
    title: str
    description: str
    shape: list[int]
    modes: list[str] = Field(description="what its modes are")
    suggested: dict[str, Any] = Field(description="fields of a job that suit it")


class SamplePage(BaseModel):
    items: list[SampleAnswer]
    next: str | None = Field(description="null: all are on one page")


@router.get("", response_model=SamplePage, responses=error_responses())
async def list_samples() -> SamplePage:
    """What there is to try."""
    items = [
        SampleAnswer(
            name=sample.name,
            title=sample.title,
            description=sample.description,
            shape=list(sample.shape),
            modes=[axis.name for axis in sample.axes],
            suggested=dict(sample.suggested),
        )
        for sample in SAMPLES.values()
    ]
    return SamplePage(items=items, next=None)


@router.post(
    "/{name}",
    status_code=201,
    response_model=TensorAnswer,
    responses={
        200: {"model": TensorAnswer, "description": "You have it already: this one"},
        **error_responses(404, 409, 413, 507),
    },
)
def add_sample(
    name: str, request: Request, caller: Caller, tensors: Tensors, records: Records, store: Store, config: Config
) -> Response:
    """Make a sample a tensor of yours, labelled; it counts for your quota. Again gives the same tensor."""
    check_length(len(sample_content(name)), caller.limits.tensor_bytes)
    reservation = Reservation(records, store, caller.owner, caller.limits, config.min_free_bytes)
    try:
        record, added = tensors.add_sample(caller.owner, name, caller.limits, reservation)
    except BaseException:
        reservation.release()
        raise
    location = public_path(request, f"{API_PREFIX}/tensors/{record.id}")
    return answer(record, 201 if added else 200, {"Location": location})
