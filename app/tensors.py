"""Tensors: upload, look up, download, delete."""

import secrets
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.answers import TensorAnswer, TensorPage, answer, answer_page
from app.deps import Caller, Config, Owner, Records, Store
from app.files import serve_file
from app.multipart import FormFile
from app.paging import Cursor, Limit
from app.refusals import refusals
from app.upload import check_length, check_room, expected_sha256, receive, tensor_stream, told_length
from worker.contract import TensorRecord
from worker.errors import QuotaReached
from worker.uploads import Upload

BINARY = {"type": "string", "format": "binary"}
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
router = APIRouter(prefix="/v1/tensors", tags=["tensors"])


@router.post(
    "",
    status_code=201,
    response_model=TensorAnswer,
    responses=refusals(400, 409, 413, 415, 507),
    openapi_extra={**BODY, **DIGEST},
)
async def upload_tensor(
    request: Request, caller: Caller, records: Records, store: Store, config: Config, name: Name = None
) -> Response:
    """Upload a nonnegative tensor of order 2 or more. It is checked whole before it is kept."""
    length, limits = told_length(request), caller.limits
    check_length(length, limits.tensor_bytes)
    await to_thread.run_sync(check_room, store, length, config.min_free_bytes)
    await to_thread.run_sync(records.check_quota, caller.owner, length, limits)
    stream, expected = tensor_stream(request), expected_sha256(request)

    def keep(upload: Upload) -> TensorRecord:
        called = name or (stream.filename if isinstance(stream, FormFile) else None)
        record = _record(caller.owner, called, upload, expected)
        try:
            records.add_tensor(record, limits)
        except QuotaReached:
            store.discard(upload, records.content_unused)
            raise
        return record

    with store.upload() as upload:
        await receive(stream, upload, limits.tensor_bytes, partial(check_room, store, 0, config.min_free_bytes))
        record = await to_thread.run_sync(keep, upload)
    return answer(record, 201, {"Location": f"/v1/tensors/{record.id}"})


def _record(owner: str, name: str | None, upload: Upload, expected: str | None) -> TensorRecord:
    sha256, facts = upload.keep(expected)
    return TensorRecord(
        id=secrets.token_hex(8),
        owner=owner,
        name=name and name[:200],
        shape=facts.shape,
        dtype=facts.dtype,
        nbytes=upload.nbytes,
        sha256=sha256,
        min=facts.min,
        max=facts.max,
        norm=facts.norm,
        created_at=datetime.now(UTC),
    )


@router.get("", response_model=TensorPage, responses=refusals())
def list_tensors(
    request: Request, owner: Owner, records: Records, sha256: Sha256 = None, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """Your own tensors, newest first. With `sha256` a client learns whether it must upload at all."""
    return answer_page(request, records.tensors(owner, sha256=sha256, limit=limit, cursor=cursor))


@router.get("/{tensor_id}", response_model=TensorAnswer, responses=refusals(404))
def get_tensor(tensor_id: str, owner: Owner, records: Records) -> Response:
    """What is known of a tensor."""
    return answer(records.tensor(owner, tensor_id))


@router.delete("/{tensor_id}", status_code=204, responses=refusals(404, 409))
def delete_tensor(tensor_id: str, owner: Owner, records: Records, store: Store) -> Response:
    """Delete a tensor that no queued or running job needs. Its bytes go with the last record that names them."""
    unused = records.delete_tensor(owner, tensor_id)
    if unused is not None:
        store.remove_tensor(unused, records.content_unused)
    return Response(status_code=204)


@router.head("/{tensor_id}/content", include_in_schema=False)
@router.get("/{tensor_id}/content", response_class=Response, responses=refusals(304, 400, 404, 416))
def get_content(tensor_id: str, request: Request, owner: Owner, records: Records, store: Store) -> Response:
    """The `.npy` file, whole or by `Range`. The ETag is its SHA-256."""
    record = records.tensor(owner, tensor_id)
    return serve_file(request, store.tensor_path(record.sha256), record.sha256, f"{tensor_id}.npy")
