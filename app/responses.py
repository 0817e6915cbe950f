"""Responses with a record or a page of records, and the headers that all responses have."""

import json
from collections.abc import Mapping
from typing import Annotated, TypeVar

from fastapi import Query, Request
from pydantic import BaseModel, Field, create_model
from starlette.responses import Response

from sparse_ncp.worker.contract import Job, Name, Page, TensorRecord
from sparse_ncp.worker.owner_limits import FrozenModel
from sparse_ncp.worker.study_contract import Study

Limit = Annotated[int, Query(ge=1, le=500, description="items on a page")]
Cursor = Annotated[str | None, Query(pattern="^[0-9]{1,16}$", description="`next` of the page before")]
NamePart = Annotated[
    str | None,
    Query(
        alias="name", max_length=200, description="only records whose name contains this text, in upper or lower case"
    ),
]
Fix = Annotated[
    str,
    Query(
        max_length=200,
        description="modes to hold at an index: modes from 1, indices from 0, such as 1:3 or 1:3,4:0",
    ),
]
Most = Annotated[
    int,
    Query(
        alias="max",
        ge=1,
        le=1024,
        description="at most this many indices of each mode; longer modes are thinned to every second, third, …",
    ),
]
Record = TypeVar("Record", Job, Study, TensorRecord)
CONTENT_SECURITY_POLICY = "Content-Security-Policy"
# An HTML page sets its own policy; all other responses load nothing.
SECURITY_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    CONTENT_SECURITY_POLICY: "default-src 'none'; frame-ancestors 'none'",
}
REQUEST_ID_HEADER = "X-Request-Id"


class NewName(FrozenModel):
    """A new name for a record."""

    name: Name | None = Field(description="a name for people; null for none")


def _without_owner(name: str, model: type[BaseModel]) -> type[BaseModel]:
    """Return a model with the same fields except the owner."""
    fields = {field: (found.annotation, found) for field, found in model.model_fields.items() if field != "owner"}
    return create_model(name, __doc__=model.__doc__, **fields)  # type: ignore[call-overload, no-any-return]


JobAnswer = _without_owner("Job", Job)
StudyAnswer = _without_owner("Study", Study)
TensorAnswer = _without_owner("Tensor", TensorRecord)
JobPage = create_model("JobPage", items=(list[JobAnswer], ...), next=(str | None, ...))  # type: ignore[valid-type]
StudyPage = create_model("StudyPage", items=(list[StudyAnswer], ...), next=(str | None, ...))  # type: ignore[valid-type]
TensorPage = create_model("TensorPage", items=(list[TensorAnswer], ...), next=(str | None, ...))  # type: ignore[valid-type]


def public_path(request: Request, path: str) -> str:
    """Return the path as callers reach it: below NCP_ROOT_PATH, which a proxy strips from requests."""
    root_path: str | None = request.app.state.configuration.root_path
    return f"{root_path or ''}{path}"


def next_link(request: Request, **query: str | int) -> str:
    """Return the value of `Link` for the next page."""
    following = request.url.include_query_params(**query)
    return f'<{public_path(request, following.path)}?{following.query}>; rel="next"'


def answer(record: Job | Study | TensorRecord, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with one record; numbers that are not finite become null."""
    return Response(record.model_dump_json(exclude={"owner"}), status, headers, "application/json")


def answer_page(request: Request, page: Page[Record]) -> Response:
    """Return a response with one page of records, and a `Link` to the next."""
    items = ",".join(record.model_dump_json(exclude={"owner"}) for record in page.items)
    headers = {}
    if page.next is not None:
        headers["Link"] = next_link(request, cursor=page.next)
    content = f'{{"items":[{items}],"next":{json.dumps(page.next)}}}'
    return Response(content, headers=headers, media_type="application/json")
