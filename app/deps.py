"""What a route may ask for by type: the caller, and the few things made once at assembly."""

from typing import Annotated

from fastapi import Depends, HTTPException, Request

from app.callers import Caller as _Caller
from app.live import Live as _Live
from worker.configuration import Configuration
from worker.logs import subject
from worker.records import Records as _Records
from worker.store import Store as _Store


async def _caller(request: Request) -> _Caller:
    """Set by the gate. A route that it does not guard has no caller, and fails. Log lines name the job from here on."""
    found: _Caller = request.state.caller
    subject().job_id = request.path_params.get("job_id")
    return found


async def _owner(request: Request) -> str:
    return (await _caller(request)).owner


async def _admin(request: Request) -> _Caller:
    """Nobody else learns that there is such a route."""
    caller = await _caller(request)
    if not caller.admin:
        raise HTTPException(404)
    return caller


async def _records(request: Request) -> _Records:
    found: _Records = request.app.state.records
    return found


async def _store(request: Request) -> _Store:
    found: _Store = request.app.state.store
    return found


async def _live(request: Request) -> _Live:
    found: _Live = request.app.state.live
    return found


async def _configuration(request: Request) -> Configuration:
    found: Configuration = request.app.state.configuration
    return found


Owner = Annotated[str, Depends(_owner)]
Caller = Annotated[_Caller, Depends(_caller)]
Admin = Annotated[_Caller, Depends(_admin)]
Records = Annotated[_Records, Depends(_records)]
Store = Annotated[_Store, Depends(_store)]
Live = Annotated[_Live, Depends(_live)]
Config = Annotated[Configuration, Depends(_configuration)]
