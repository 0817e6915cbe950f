"""Dependencies of routes, as annotated types: the caller, and objects of the application."""

from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError

from sparse_ncp.app.auth.authenticate import Caller as _Caller
from sparse_ncp.app.errors.exceptions import UnsupportedMedia
from sparse_ncp.app.streaming.broadcast import Broadcaster as _Broadcaster
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.logs import log_context
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.models import ModelOperations
from sparse_ncp.worker.operations.studies import StudyOperations
from sparse_ncp.worker.operations.tensors import TensorOperations
from sparse_ncp.worker.records.records import Records as _Records
from sparse_ncp.worker.rendering.pool import Renderers as _Renderers
from sparse_ncp.worker.store.store import Store as _Store


async def current_caller(request: Request) -> _Caller:
    """Return the caller, set by the authentication middleware for routes below its prefix.

    From here on, log lines name the job of the request.
    """
    found: _Caller = request.state.caller
    log_context().job_id = request.path_params.get("job_id")
    return found


async def current_owner(request: Request) -> str:
    """Return the owner of everything that the caller creates."""
    return (await current_caller(request)).owner


async def current_admin(request: Request) -> _Caller:
    """Return the caller if they are an admin; for all others the route does not exist."""
    caller = await current_caller(request)
    if not caller.admin:
        raise HTTPException(404)
    return caller


async def only_json(request: Request) -> None:
    """Refuse a body without the media type of JSON."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise UnsupportedMedia("The body must be JSON.", "send it with Content-Type: application/json")


async def only_known_query(request: Request) -> None:
    """Refuse query fields that the route does not have, as unknown fields of a body are refused."""
    if not request.scope["query_string"]:
        return
    known = _query_names(request.scope["route"].dependant)
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if unknown:
        remedy = f"leave it out, or choose one of {', '.join(known)}" if known else "leave it out, this call has none"
        refusal = {"type": "value_error", "msg": f"is not known here; {remedy}"}
        raise RequestValidationError([{**refusal, "loc": ("query", name)} for name in unknown])


def _query_names(dependant: Dependant) -> list[str]:
    inner = [name for dependency in dependant.dependencies for name in _query_names(dependency)]
    return [field.alias for field in dependant.query_params] + inner


def _from_state(name: str) -> Any:
    """Return a dependency on `app.state.<name>`, which the application sets once."""

    async def get(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(get)


Owner = Annotated[str, Depends(current_owner)]
Caller = Annotated[_Caller, Depends(current_caller)]
Admin = Annotated[_Caller, Depends(current_admin)]
Records = Annotated[_Records, _from_state("records")]
Store = Annotated[_Store, _from_state("store")]
Tensors = Annotated[TensorOperations, _from_state("tensors")]
Jobs = Annotated[JobOperations, _from_state("jobs")]
Models = Annotated[ModelOperations, _from_state("models")]
Studies = Annotated[StudyOperations, _from_state("studies")]
Renderers = Annotated[_Renderers, _from_state("renderers")]
Broadcaster = Annotated[_Broadcaster, _from_state("broadcaster")]
Config = Annotated[Configuration, _from_state("configuration")]
