"""Assemble the application: routers, middleware, lifespan, HEAD for every GET."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version

import redis.asyncio
from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute

from sparse_ncp.app.auth.authenticate import Authenticator, Identify
from sparse_ncp.app.deps import only_known_query
from sparse_ncp.app.errors import handlers
from sparse_ncp.app.metrics import HttpMetrics, ServerCollector, StoreSize
from sparse_ncp.app.middleware.authentication import AuthenticationMiddleware
from sparse_ncp.app.middleware.body_limit import BodyLimitMiddleware
from sparse_ncp.app.middleware.cross_origin import CrossOriginMiddleware, cross_origin
from sparse_ncp.app.middleware.host_header import HostHeaderMiddleware
from sparse_ncp.app.middleware.request_id import RequestIdMiddleware
from sparse_ncp.app.middleware.security_headers import SecurityHeadersMiddleware
from sparse_ncp.app.routes import account, admin, events, health, jobs, methods, pages
from sparse_ncp.app.routes.openapi import describe
from sparse_ncp.app.routes.results import factors, models, plots
from sparse_ncp.app.routes.studies import results as study_results
from sparse_ncp.app.routes.studies import studies
from sparse_ncp.app.routes.submissions import Submissions
from sparse_ncp.app.routes.tensors import records as tensors
from sparse_ncp.app.routes.tensors import samples, views
from sparse_ncp.app.streaming.broadcast import Broadcaster
from sparse_ncp.app.streaming.stream_limits import StreamLimits
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.rendering.pool import Renderers
from sparse_ncp.worker.rendering.request import Operations

DESCRIPTION = """Upload a `.npy` tensor, submit a job, watch objective and relative error, download the factors.
Refusals are `application/problem+json` and name field and remedy. Modes count from 1."""
# After so long without an answer the event reader connects again; a read itself blocks for a fraction of a second.
READ_SECONDS = 5.0
# In the order in which they are tried: submissions come at the highest rate.
ROUTERS = (
    jobs.router,
    tensors.router,
    views.router,
    samples.router,
    events.router,
    factors.router,
    models.router,
    plots.router,
    studies.router,
    study_results.router,
    account.router,
    admin.router,
    methods.router,
    health.router,
    pages.router,
)


def answer_head(router: APIRouter) -> None:
    """Add HEAD to every GET route that lacks it. OpenAPI leaves these out, since they would double every route."""
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    answered = {route.path for route in routes if "HEAD" in (route.methods or ())}
    for route in routes:
        if "GET" in (route.methods or ()) and route.path not in answered:
            router.add_api_route(
                route.path.removeprefix(router.prefix),
                route.endpoint,
                methods=["HEAD"],
                response_model=None,
                dependencies=route.dependencies,
                include_in_schema=False,
            )


for _router in ROUTERS:
    answer_head(_router)


def create_app(configuration: Configuration, identify: Identify | None = None) -> FastAPI:
    """Create the application. `identify` returns the caller of a request, by default from the API key."""
    app = FastAPI(
        title="sparse-ncp",
        version=version("sparse-ncp"),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect repeats whatever Host it was sent, and knows no sub-path or TLS in front
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
        dependencies=[Depends(only_known_query)],
    )
    app.state.configuration = configuration
    app.state.authenticator = Authenticator(configuration)
    app.state.identify = identify or app.state.authenticator
    app.state.metrics = HttpMetrics()
    app.state.routes = [route for router in ROUTERS for route in router.routes]
    for router in ROUTERS:
        app.include_router(router)
    pages.mount_assets(app)
    handlers.install(app)
    app.add_middleware(BodyLimitMiddleware, max_bytes=configuration.max_body_bytes)
    app.add_middleware(AuthenticationMiddleware, identify=app.state.identify)
    app.add_middleware(CrossOriginMiddleware, origins=configuration.allowed_origins)
    if configuration.allowed_origins:
        app.add_middleware(cross_origin, origins=configuration.allowed_origins)
    app.add_middleware(HostHeaderMiddleware)
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(RequestIdMiddleware, metrics=app.state.metrics)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open what all requests share, and read events while the server runs."""
    asyncio.get_running_loop().set_default_executor(
        ThreadPoolExecutor(app.state.configuration.request_threads, "requests")
    )
    configuration: Configuration = app.state.configuration
    operations = Operations.of(configuration, reads_factors=False)
    records, store = operations.records, operations.store
    app.state.records, app.state.store, app.state.tensors = records, store, operations.tensors
    app.state.jobs, app.state.models, app.state.studies = operations.jobs, operations.models, operations.studies
    app.state.jobs.open()
    app.state.submissions = Submissions(app.state.jobs)
    app.state.renderers = Renderers(configuration, operations)
    app.state.store_size = StoreSize(store)
    app.state.metrics.registry.register(ServerCollector(app, records.stats, store, app.state.store_size))
    url, patience = str(configuration.redis_url), READ_SECONDS
    async with redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=patience) as reader:
        limits = StreamLimits(configuration.max_streams, configuration.max_streams_per_owner)
        app.state.broadcaster = Broadcaster(reader, records.events, configuration.event_buffer, limits)
        reading = asyncio.create_task(app.state.broadcaster.run())
        try:
            yield
        finally:
            app.state.broadcaster.close()
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            await app.state.renderers.close()
            await to_thread.run_sync(app.state.jobs.close)
            records.close()
