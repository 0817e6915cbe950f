"""Assembles the application; nothing is decided here."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version

import redis.asyncio
from fastapi import FastAPI

from app import docs, events, factors, health, history, jobs, problems, tensors
from app.body_limit import BodyLimit
from app.deps import OwnerOf, everyone_is_local
from app.live import Live
from app.refusals import describe
from app.request_id import RequestId
from app.sub_path import SubPath
from worker.configuration import Configuration
from worker.link import connect
from worker.records import Records
from worker.store import Store

DESCRIPTION = """Upload a `.npy` tensor, submit a job, watch objective and relative error, download the factors.
Refusals are `application/problem+json` and name field and remedy. Modes count from 1."""
# A Redis that is silent for so long is asked anew; a read by itself waits for a fraction of a second.
READ_SECONDS = 5.0
ROUTERS = (tensors.router, jobs.router, events.router, history.router, factors.router, health.router, docs.router)


def create_app(configuration: Configuration, owner_of: OwnerOf = everyone_is_local) -> FastAPI:
    """The application on a Redis that is running. `owner_of` says who is calling."""
    app = FastAPI(
        title="sparse-ncp",
        version=version("sparse-ncp"),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.configuration = configuration
    app.state.owner_of = owner_of
    app.state.routes = [route for router in ROUTERS for route in router.routes]
    for router in ROUTERS:
        app.include_router(router)
    docs.mount_assets(app)
    problems.install(app)
    app.add_middleware(BodyLimit)
    if configuration.root_path:
        app.add_middleware(SubPath, path=configuration.root_path)
    app.add_middleware(RequestId)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    return app


def from_environment() -> FastAPI:
    """For `uvicorn --factory app.main:from_environment`."""
    return create_app(Configuration())


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open what all requests share; the event reader lives as long as the server."""
    configuration: Configuration = app.state.configuration
    connection = connect(configuration)
    app.state.records = Records(connection, configuration)
    app.state.store = Store(configuration.data)
    url, patience = str(configuration.redis_url), READ_SECONDS
    async with redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=patience) as reader:
        app.state.live = Live(reader, app.state.records, configuration.event_buffer)
        reading = asyncio.create_task(app.state.live.run())
        try:
            yield
        finally:
            app.state.live.close()
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            connection.close()
