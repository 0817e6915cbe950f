"""Is the server alive, is it ready, and what can it do."""

import logging
import tempfile

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from app.deps import Config, Records, Store
from app.problems import problem
from app.refusals import refusals
from app.validation import FieldProblem
from solvers import METHODS
from worker.store import Store as FileStore

log = logging.getLogger("ncp.health")
router = APIRouter(tags=["server"])


class Alive(BaseModel):
    alive: bool = True
    version: str = Field(description="of the server")


class Ready(BaseModel):
    """What must be true for a job to run, each by itself."""

    redis: bool = Field(description="Redis answers")
    durable: bool = Field(description="Redis keeps every write: AOF, appendfsync always, noeviction")
    disk: bool = Field(description="the store can be written and has NCP_MIN_FREE_BYTES left")
    worker: bool = Field(description="a worker is there")
    free_bytes: int
    live_workers: int


LACKS = {
    lack.field: lack
    for lack in (
        FieldProblem(field="redis", problem="does not answer", remedy="start it, or correct NCP_REDIS_URL"),
        FieldProblem(
            field="durable",
            problem="Redis may lose records",
            remedy="run it with appendonly yes, appendfsync always and maxmemory-policy noeviction",
        ),
        FieldProblem(
            field="disk", problem="cannot be written, or is nearly full", remedy="free some space in NCP_DATA"
        ),
        FieldProblem(field="worker", problem="none is there", remedy="start one with ncp worker"),
    )
}


class MethodAnswer(BaseModel):
    """A method of the registry and what it promises."""

    name: str
    title: str
    penalty: str = Field(description="the paper's own, used when none is asked for")
    monotone: bool = Field(description="the objective never rises")
    exact: bool = Field(description="each mode's problem is solved to its minimum")
    options: list[str] = Field(description="settings that belong to this method")


@router.get("/healthz", response_model=Alive)
async def healthz(request: Request) -> Alive:
    """The process answers. Says nothing of Redis or workers: restarting this process would not mend those."""
    return Alive(version=request.app.version)


@router.get("/readyz", response_model=Ready, responses=refusals())
def readyz(records: Records, store: Store, config: Config) -> Response:
    """Whether a job submitted now would be kept and run; if not, `errors` names each thing that is missing."""
    seen = records.ping()
    ready = Ready(
        redis=seen.reachable,
        durable=seen.durable,
        disk=_is_writable(store) and store.free_bytes() >= config.min_free_bytes,
        worker=seen.live_workers > 0,
        free_bytes=store.free_bytes(),
        live_workers=seen.live_workers,
    )
    missing = [lack for check, lack in LACKS.items() if not getattr(ready, check)]
    if missing:
        detail = "; ".join(f"{lack.field}: {lack.problem}" for lack in missing)
        return problem(503, "not-ready", detail, "mend what errors names", missing)
    return JSONResponse(ready.model_dump())


@router.get("/v1/methods", response_model=list[MethodAnswer], responses=refusals())
async def list_methods() -> list[MethodAnswer]:
    """The methods a job may name."""
    return [
        MethodAnswer(
            name=name,
            title=method.title,
            penalty=method.penalty,
            monotone=method.monotone,
            exact=method.exact,
            options=sorted(method.options),
        )
        for name, method in METHODS.items()
    ]


def _is_writable(store: FileStore) -> bool:
    """Tried, not guessed from permissions: a disk can be full or mounted read-only."""
    try:
        with tempfile.TemporaryFile(dir=store.root) as file:
            file.write(b"ready")
        return True
    except OSError as error:
        log.warning("the store cannot be written: %s", error)
        return False
