"""Records as callers see them: everything but the owner, who is always the caller."""

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, create_model
from starlette.responses import JSONResponse

from worker.contract import Job, Page, TensorRecord

Record = TypeVar("Record", Job, TensorRecord)


def _without_owner(name: str, model: type[BaseModel]) -> type[BaseModel]:
    """The same fields and descriptions: derived, so that the two cannot drift apart."""
    fields = {field: (told.annotation, told) for field, told in model.model_fields.items() if field != "owner"}
    return create_model(name, __doc__=model.__doc__, **fields)  # type: ignore[call-overload, no-any-return]


JobAnswer = _without_owner("Job", Job)
TensorAnswer = _without_owner("Tensor", TensorRecord)
JobPage = create_model("JobPage", items=(list[JobAnswer], ...), next=(str | None, ...))  # type: ignore[valid-type]
TensorPage = create_model("TensorPage", items=(list[TensorAnswer], ...), next=(str | None, ...))  # type: ignore[valid-type]


def answer(record: Job | TensorRecord, status: int = 200, headers: dict[str, str] | None = None) -> JSONResponse:
    """One record."""
    return JSONResponse(record.model_dump(mode="json", exclude={"owner"}), status, headers)


def answer_page(request: Request, page: Page[Record]) -> JSONResponse:
    """A page, with the address of the next one in `Link` as well."""
    items = [record.model_dump(mode="json", exclude={"owner"}) for record in page.items]
    headers = {}
    if page.next is not None:
        following = request.url.include_query_params(cursor=page.next)
        headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    return JSONResponse({"items": items, "next": page.next}, headers=headers)
