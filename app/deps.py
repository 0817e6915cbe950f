"""What a route may ask for by type: the caller, and the few things made once at assembly."""

from collections.abc import Callable
from typing import Annotated, TypeAlias

from fastapi import Depends, Request

from app.live import Live as _Live
from worker.configuration import Configuration
from worker.records import Records as _Records
from worker.store import Store as _Store

OwnerOf: TypeAlias = Callable[[Request], str]


def everyone_is_local(request: Request) -> str:
    """An open server on loopback has one user."""
    return "local"


def _owner(request: Request) -> str:
    resolve: OwnerOf = request.app.state.owner_of
    return resolve(request)


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
