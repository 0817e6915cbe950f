"""Assembles the application; nothing is decided here."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version

import redis.asyncio
from fastapi import FastAPI

from app import admin, docs, events, factors, health, history, jobs, metrics, problems, tensors, usage
from app.body_limit import BodyLimit
from app.callers import Doorkeeper, Identify
from app.gate import Gate
from app.head import answer_head
from app.live import Live
from app.numbers import Numbers
from app.refusals import describe
from app.request_id import RequestId
from app.same_site import SameSite
from app.security import SecurityHeaders, cross_origin
from app.sub_path import SubPath
from worker.configuration import Configuration
from worker.link import connect
from worker.overview import Overview
from worker.records import Records
from worker.store import Store

DESCRIPTION = """Upload a `.npy` tensor, submit a job, watch objective and relative error, download the factors.
Refusals are `application/problem+json` and name field and remedy. Modes count from 1."""
# A Redis that is silent for so long is asked anew; a read by itself waits for a fraction of a second.
READ_SECONDS = 5.0
# A caller waits no longer than this for a Redis that is silent, and is then told to come back.
ANSWER_SECONDS = 2.0
ROUTERS = (
    tensors.router,
    jobs.router,
    events.router,
    history.router,
    factors.router,
    usage.router,
    admin.router,
    health.router,
    metrics.router,
    docs.router,
)
for _router in ROUTERS:
    answer_head(_router)


def create_app(configuration: Configuration, identify: Identify | None = None) -> FastAPI:
    """The application on a Redis that is running. `identify` says who is calling: whoever has the key."""
    app = FastAPI(
        title="sparse-ncp",
        version=version("sparse-ncp"),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.configuration = configuration
    app.state.identify = identify or Doorkeeper(configuration)
    app.state.numbers = Numbers()
    app.state.routes = [route for router in ROUTERS for route in router.routes]
    for router in ROUTERS:
        app.include_router(router)
    docs.mount_assets(app)
    problems.install(app)
    app.add_middleware(BodyLimit)
    app.add_middleware(Gate, identify=app.state.identify)
    if configuration.root_path:
        app.add_middleware(SubPath, path=configuration.root_path)
    app.add_middleware(SameSite, origins=configuration.allowed_origins)
    if configuration.allowed_origins:
        app.add_middleware(cross_origin, origins=configuration.allowed_origins)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestId, numbers=app.state.numbers)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open what all requests share; the event reader lives as long as the server."""
    configuration: Configuration = app.state.configuration
    connection = connect(configuration, ANSWER_SECONDS)
    app.state.records = Records(connection, configuration)
    app.state.store = Store(configuration.data)
    overview = Overview(connection, configuration)
    app.state.numbers.registry.register(metrics.Surroundings(app, overview, app.state.store))
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
