"""What a route may ask for by type: the caller, and the few things made once at assembly."""

from collections.abc import Callable
from typing import Annotated, TypeAlias

from fastapi import Depends, Request

from app.live import Live as _Live
from worker.configuration import Configuration
from worker.logs import subject
from worker.records import Records as _Records
from worker.store import Store as _Store

OwnerOf: TypeAlias = Callable[[Request], str]
IsAdmin: TypeAlias = Callable[[Request], bool]


def everyone_is_local(request: Request) -> str:
    """An open server on loopback has one user."""
    return "local"


def nobody_is_admin(request: Request) -> bool:
    """Who asks is not known, so nobody may see what is everybody's."""
    return False


def _owner(request: Request) -> str:
    """The log lines of this request name its owner and its job from here on."""
    resolve: OwnerOf = request.app.state.owner_of
    concerned = subject()
    concerned.owner, concerned.job_id = resolve(request), request.path_params.get("job_id")
    return concerned.owner


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
Records = Annotated[_Records, Depends(_records)]
Store = Annotated[_Store, Depends(_store)]
Live = Annotated[_Live, Depends(_live)]
Config = Annotated[Configuration, Depends(_configuration)]
