"""The numbers of every iteration, for clients that poll or plot."""

import csv
import io
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from app.deps import Owner, Records
from app.refusals import refusals
from worker.contract import Progress

After = Annotated[int, Query(ge=0, le=10**18, description="only iterations after this one: the last you have seen")]
Format = Annotated[Literal["json", "csv"], Query(description="json: a list of objects; csv: one line per iteration")]
CSV: dict[str, Any] = {"content": {"text/csv": {"schema": {"type": "string"}}}}
router = APIRouter(prefix="/v1/jobs/{job_id}/history", tags=["jobs"])


@router.get("", response_model=list[Progress], responses={200: CSV, **refusals(404)})
def get_history(job_id: str, owner: Owner, records: Records, after: After = 0, format: Format = "json") -> Response:
    """The same numbers as the event stream, in order, each iteration once."""
    rows = records.history(owner, job_id, after)
    if format == "csv":
        return Response(_csv(rows), media_type="text/csv; charset=utf-8")
    return JSONResponse([row.model_dump() for row in rows])


def _csv(rows: Sequence[Progress]) -> str:
    """Numbers in full: reading them back gives the same bits."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(Progress.model_fields), lineterminator="\n")
    table.writeheader()
    table.writerows(row.model_dump() for row in rows)
    return text.getvalue()
