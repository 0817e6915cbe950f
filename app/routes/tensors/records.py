"""Tensors: upload, list, get, rename, label, download, delete."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.deps import Caller, Owner, Records, Tensors, only_json
from sparse_ncp.app.responses import (
    Cursor,
    Limit,
    NamePart,
    NewName,
    TensorAnswer,
    TensorPage,
    answer,
    answer_page,
    public_path,
)
from sparse_ncp.app.routes.openapi import BINARY, binary_responses, error_responses
from sparse_ncp.app.streaming.download import BYTES, serve_file
from sparse_ncp.app.streaming.multipart import FormFile
from sparse_ncp.app.streaming.upload import check_length, declared_length, expected_sha256, tensor_stream, upload_body
from sparse_ncp.worker.contract import Axis

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "a .npy file, raw or as field `file` of a form",
        "content": {
            "application/octet-stream": {"schema": BINARY},
            "multipart/form-data": {"schema": {"type": "object", "required": ["file"], "properties": {"file": BINARY}}},
        },
    }
}
DIGEST: dict[str, Any] = {
    "parameters": [
        {
            "name": "Repr-Digest",
            "in": "header",
            "required": False,
            "description": "`sha-256=:BASE64:` of the file; a mismatch is refused",
            "schema": {"type": "string"},
        }
    ]
}
Sha256 = Annotated[str | None, Query(pattern="^[0-9a-f]{64}$", description="only tensors with these bytes")]
Name = Annotated[str | None, Query(max_length=200, description="a name for people; a form's file name by default")]
CONTENT = {**binary_responses(BYTES), **error_responses(304, 400, 404, 412, 416)}
router = APIRouter(prefix=f"{API_PREFIX}/tensors", tags=["tensors"])


@router.post(
    "",
    status_code=201,
    response_model=TensorAnswer,
    responses=error_responses(400, 409, 413, 415, 504, 507),
    openapi_extra={**BODY, **DIGEST},
)
async def upload_tensor(request: Request, caller: Caller, tensors: Tensors, name: Name = None) -> Response:
    """Upload a tensor of order 2 or more, or a mask. All entries are checked before it is stored.

    NaN and negative entries are counted; each job decides how to treat them.
    """
    length, limits = declared_length(request), caller.limits
    check_length(length, limits.tensor_bytes)
    stream, expected = tensor_stream(request), expected_sha256(request)
    body = upload_body(stream, limits.tensor_bytes)

    def called() -> str | None:
        return name or (stream.filename if isinstance(stream, FormFile) else None)

    record = await tensors.receive(body, caller.owner, called, length, expected, limits)
    return answer(record, 201, {"Location": public_path(request, f"{router.prefix}/{record.id}")})


@router.get("", response_model=TensorPage, responses=error_responses())
def list_tensors(
    request: Request,
    owner: Owner,
    records: Records,
    sha256: Sha256 = None,
    name: NamePart = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List your tensors, newest first. With `sha256`, a client can check whether the server has a file already."""
    return answer_page(request, records.tensors.list(owner, sha256=sha256, name=name, limit=limit, cursor=cursor))


@router.get("/{tensor_id}", response_model=TensorAnswer, responses=error_responses(404))
def get_tensor(tensor_id: str, owner: Owner, tensors: Tensors) -> Response:
    """Get the record of a tensor, with its labels and a report on its zeros."""
    return answer(tensors.get(owner, tensor_id))


@router.patch(
    "/{tensor_id}",
    response_model=TensorAnswer,
    responses=error_responses(400, 404, 413, 415, 504),
    dependencies=[Depends(only_json)],
)
def rename_tensor(tensor_id: str, body: NewName, owner: Owner, records: Records) -> Response:
    """Rename a tensor, or remove its name."""
    return answer(records.tensors.rename(owner, tensor_id, body.name))


@router.get("/{tensor_id}/axes", response_model=list[Axis], responses=error_responses(404))
def get_axes(tensor_id: str, owner: Owner, records: Records) -> Any:
    """Get the labels of the modes, in order; empty if there are none."""
    return records.tensors.get_labelled(owner, tensor_id).axes or []


@router.put(
    "/{tensor_id}/axes",
    response_model=list[Axis],
    responses=error_responses(400, 404, 409, 413, 415, 504),
    dependencies=[Depends(only_json)],
)
def put_axes(tensor_id: str, axes: tuple[Axis, ...], caller: Caller, tensors: Tensors) -> Any:
    """Label the modes, replacing any labels. Jobs keep the labels they were submitted with."""
    tensors.set_axes(caller.owner, tensor_id, axes, caller.limits)
    return axes


@router.delete("/{tensor_id}", status_code=204, responses=error_responses(404, 409, 504))
def delete_tensor(tensor_id: str, owner: Owner, tensors: Tensors) -> Response:
    """Delete a tensor that no queued or running job needs. Its file is deleted with the last record that uses it."""
    tensors.delete(owner, tensor_id)
    return Response(status_code=204)


@router.head("/{tensor_id}/content", include_in_schema=False)
@router.get("/{tensor_id}/content", response_class=Response, responses=CONTENT)
def get_content(tensor_id: str, request: Request, owner: Owner, tensors: Tensors) -> Response:
    """Download the `.npy` file, whole or by `Range`. The ETag is its SHA-256."""
    return serve_file(request, tensors.open_content(owner, tensor_id), f"{tensor_id}.npy")
