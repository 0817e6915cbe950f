"""/healthz, /readyz and /metrics."""

import logging

from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from sparse_ncp.app.auth.authenticate import Identify
from sparse_ncp.app.auth.hosts import is_known, is_loopback
from sparse_ncp.app.deps import Config, Records, Store
from sparse_ncp.app.errors.exceptions import Forbidden
from sparse_ncp.app.errors.problem import FieldProblem, problem
from sparse_ncp.app.metrics import HttpMetrics
from sparse_ncp.app.routes.openapi import error_responses

router = APIRouter(tags=["server"])
# Headers that show that a request came through a proxy.
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-real-ip")
log = logging.getLogger("ncp.health")


class Alive(BaseModel):
    alive: bool = True
    version: str = Field(description="of the server")


class Ready(BaseModel):
    """The conditions for a job to run, each reported separately."""

    redis: bool = Field(description="Redis answers")
    writable: bool = Field(description="Redis accepts writes")
    durable: bool = Field(description="Redis keeps every write: AOF, appendfsync always, noeviction")
    disk: bool = Field(description="every folder of NCP_DATA can be written, and NCP_MIN_FREE_BYTES are left")
    worker: bool = Field(description="at least one worker is live")
    free_bytes: int
    live_workers: int


CHECKS = {
    check.field: check
    for check in (
        FieldProblem(field="redis", problem="does not answer", remedy="start it, or correct NCP_REDIS_URL"),
        FieldProblem(
            field="writable",
            problem="Redis refuses to write",
            remedy="raise its maxmemory, free its disk, connect its replicas, or point NCP_REDIS_URL to the primary",
        ),
        FieldProblem(
            field="durable",
            problem="Redis may lose records",
            remedy="run it with appendonly yes, appendfsync always and maxmemory-policy noeviction",
        ),
        FieldProblem(
            field="disk",
            problem="cannot be written, or is nearly full",
            remedy="free some space in NCP_DATA, or mount its disk again if that is read-only or fails",
        ),
        FieldProblem(field="worker", problem="no worker is live", remedy="start one with ncp worker"),
    )
}


@router.get("/healthz", response_model=Alive)
async def healthz(request: Request) -> Alive:
    """Check that this process answers. Redis and workers are not checked, since restarting it would not repair them."""
    return Alive(version=request.app.version)


@router.get("/readyz", response_model=Ready, responses=error_responses())
def readyz(records: Records, store: Store, config: Config) -> Response:
    """Check that a job submitted now would be stored and run; otherwise `errors` names each failed condition."""
    seen = records.ping()
    room: int | None = None
    reasons = {"writable": seen.refusal} if seen.refusal else {}
    try:
        store.check_writable()
        room = store.free_bytes()
    except OSError as error:
        log.warning("the store cannot be written: %s", error)
        reasons["disk"] = error.strerror or str(error)
    ready = Ready(
        redis=seen.reachable,
        writable=seen.reachable and seen.refusal is None,
        durable=seen.durable,
        disk=room is not None and room >= config.min_free_bytes,
        worker=seen.live_workers > 0,
        free_bytes=room or 0,
        live_workers=seen.live_workers,
    )
    failed = [
        check.model_copy(update={"problem": reasons.get(name, check.problem)})
        for name, check in CHECKS.items()
        if not getattr(ready, name)
    ]
    if failed:
        detail = "; ".join(f"{check.field}: {check.problem}" for check in failed)
        return problem(503, "not-ready", detail, "correct the conditions named in errors", failed)
    return JSONResponse(ready.model_dump())


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}}, "description": "Prometheus's format"},
        **error_responses(401, 403, 421),
    },
)
def metrics(request: Request) -> Response:
    """Get metrics for Prometheus. Callers on the same machine need no key, others need an admin's key."""
    if not may_read(request):
        raise Forbidden("The metrics of the server are for admins, and for callers on the same machine.")
    metrics: HttpMetrics = request.app.state.metrics
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(metrics.registry), media_type=media_type)


def may_read(request: Request) -> bool:
    """Return whether the caller may read the metrics.

    No key is needed from this machine, with a `Host` that names it: a proxy on this machine sends another `Host`, or
    the address of its client, which may be anywhere unless the proxy is trusted. All others need an admin's key.
    """
    identify: Identify = request.app.state.identify
    is_local = request.client is not None and is_loopback(request.client.host)
    is_direct = not any(header in request.headers for header in FORWARDED)
    return (is_local and is_direct and is_known(request.headers.get("host", ""), ())) or identify(request).admin
