"""/metrics for Prometheus: what this process counts, what Redis knows of all workers, and the disk."""

import logging
import threading
import time
from collections.abc import Iterator

from fastapi import APIRouter, FastAPI, Request
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from app.callers import Identify
from app.hosts import is_known, is_loopback
from app.numbers import Numbers
from app.problems import Forbidden
from app.refusals import refusals
from worker.contract import TERMINAL
from worker.errors import Unavailable
from worker.overview import Glance, Overview
from worker.store import Store
from worker.stored_bytes import stored_bytes

# Walking through the store is too dear for every scrape; its size changes slowly.
STORE_SECONDS = 60.0
COUNTERS = {
    "iterations": "Iterations that workers have published",
    "expired_leases": "Attempts taken back because their worker fell silent",
    "fenced_writes": "Writes refused because they came from an attempt that had lost its job",
}
log = logging.getLogger("ncp.metrics")
router = APIRouter(tags=["server"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus's format"}, **refusals(401, 403, 421)},
)
def metrics(request: Request) -> Response:
    """Numbers for Prometheus: from this machine for anyone, from elsewhere with an admin's key."""
    if not may_read(request):
        raise Forbidden("The numbers of the whole server are for admins, and for callers on the same machine.")
    numbers: Numbers = request.app.state.numbers
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(numbers.registry), media_type=media_type)


def may_read(request: Request) -> bool:
    """From here, and by a name of this machine: what a proxy beside us passes on has another `Host`, or the address of
    whom it names. Everybody else is asked for a key, as under /v1."""
    identify: Identify = request.app.state.identify
    from_here = request.client is not None and is_loopback(request.client.host)
    return (from_here and is_known(request.headers.get("host", ""), ())) or identify(request).admin


class Surroundings:
    """Asked at every scrape. Without Redis it tells the rest, and that Redis is away."""

    def __init__(self, app: FastAPI, overview: Overview, store: Store) -> None:
        self._app = app
        self._overview = overview
        self._store = store
        self._size = StoreSize(store)

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("ncp_build", "Of this server", {"version": self._app.version})
        yield _gauge("ncp_event_clients", "Clients that watch a job, at this process", self._app.state.live.watched)
        yield _gauge("ncp_free_disk_bytes", "Free disk below the data folder", self._store.free_bytes())
        yield self._size.metric()
        glance = self._look()
        yield _gauge("ncp_redis_up", "Whether Redis answers", float(glance is not None))
        if glance is not None:
            yield from _of_redis(glance)

    def _look(self) -> Glance | None:
        try:
            return self._overview.glance()
        except Unavailable as error:
            log.warning("metrics without Redis: %s", error)
            return None


def _of_redis(glance: Glance) -> Iterator[Metric]:
    yield _gauge("ncp_queued_jobs", "Jobs that wait", glance.queued)
    yield _gauge(
        "ncp_oldest_queued_job_seconds", "How long the oldest of them has waited", glance.oldest_queued_seconds
    )
    yield _gauge("ncp_running_jobs", "Jobs that run", glance.running)
    yield _gauge("ncp_live_workers", "Workers heard of within a lease", glance.live_workers)
    for name, meaning in COUNTERS.items():
        yield CounterMetricFamily(f"ncp_{name}", meaning, value=glance.counts.get(name, 0))
    ended = CounterMetricFamily("ncp_ended_jobs", "Jobs that have ended", labels=["state"])
    for state in sorted(TERMINAL):
        ended.add_metric([state], glance.counts.get(f"ended_{state}", 0))
    yield ended


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=value)


class StoreSize:
    """The size at the last look, which is at most a scrape and a minute old; a look never holds up a scrape."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, int] = {}
        self._due = 0.0
        self._looking = threading.Lock()

    def metric(self) -> GaugeMetricFamily:
        if time.monotonic() >= self._due and self._looking.acquire(blocking=False):
            threading.Thread(target=self._look, name="store-size", daemon=True).start()
        told = GaugeMetricFamily("ncp_store_bytes", "Stored bytes, looked at once a minute", labels=["kind"])
        for kind, size in self._seen.items():
            told.add_metric([kind], size)
        return told

    def _look(self) -> None:
        try:
            self._seen = stored_bytes(self._store.root)
            self._due = time.monotonic() + STORE_SECONDS
        finally:
            self._looking.release()
