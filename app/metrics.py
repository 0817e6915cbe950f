"""Prometheus metrics: HTTP requests of this process, queue and workers from Redis, the disk."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from sparse_ncp.worker.contract import TERMINAL
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.records.stats import QueueStats, StatsRecords
from sparse_ncp.worker.store.store import Store

# Until the response begins: a stream lasts as long as its job, a download as long as the network needs.
BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
HTTP_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Walking through the store is too slow for every scrape, and its size changes slowly.
STORE_SECONDS = 60.0
COUNTERS = {
    "iterations": "Iterations that workers have published",
    "expired_leases": "Attempts taken back because their lease expired",
    "fenced_writes": "Writes refused because they came from an attempt that had lost its job",
}
log = logging.getLogger("ncp.metrics")


class HttpMetrics:
    """Counts of requests, in a registry of their own: several applications may run in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._responses = Counter(
            "ncp_requests", "Responses sent", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "ncp_request_seconds",
            "Time until the response begins",
            ["method", "route"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._slow = Counter(
            "ncp_slow_clients", "Connections closed for being too slow", ["at"], registry=self.registry
        )

        self._crowded = Counter(
            "ncp_crowded_connections",
            "Connections closed because there were too many",
            ["bound"],
            registry=self.registry,
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a response. `route` is a template, and an unknown method is "other": labels must stay few."""
        label = method if method in HTTP_METHODS else "other"
        self._responses.labels(label, route, status).inc()
        self._seconds.labels(label, route).observe(seconds)

    def too_slow(self, at: str) -> None:
        """Count a connection that was closed because its client was too slow."""
        self._slow.labels(at).inc()

    def crowded(self, bound: str) -> None:
        """Count a connection that was closed or refused because there were too many, of its address or in all."""
        self._crowded.labels(bound).inc()


class ServerCollector:
    """Queue, workers, disk and event clients, collected at every scrape; without Redis, all but queue and workers."""

    def __init__(self, app: FastAPI, stats: StatsRecords, store: Store, size: "StoreSize") -> None:
        self._app = app
        self._stats = stats
        self._store = store
        self._size = size

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("ncp_build", "Of this server", {"version": self._app.version})
        yield _gauge(
            "ncp_event_clients", "Clients that watch a job, at this process", self._app.state.broadcaster.subscribers
        )
        yield _gauge("ncp_free_disk_bytes", "Free disk below the data folder", self._store.free_bytes())
        yield self._size.metric()
        try:
            queue = self._stats.queue()
        except Unavailable as error:
            log.warning("metrics without Redis: %s", error)
            queue = None
        yield _gauge("ncp_redis_up", "Whether Redis answers", float(queue is not None))
        if queue is not None:
            yield from _queue_metrics(queue)


def _queue_metrics(queue: QueueStats) -> Iterator[Metric]:
    yield _gauge("ncp_queued_jobs", "Jobs that wait", queue.queued)
    yield _gauge("ncp_oldest_queued_job_seconds", "How long the oldest of them has waited", queue.oldest_queued_seconds)
    yield _gauge("ncp_running_jobs", "Jobs that run", queue.running)
    yield _gauge("ncp_live_workers", "Workers with a heartbeat within the lease time", queue.live_workers)
    for name, meaning in COUNTERS.items():
        yield CounterMetricFamily(f"ncp_{name}", meaning, value=queue.counts.get(name, 0))
    ended = CounterMetricFamily("ncp_ended_jobs", "Jobs that have ended", labels=["state"])
    for state in sorted(TERMINAL):
        ended.add_metric([state], queue.counts.get(f"ended_{state}", 0))
    yield ended


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=value)


class StoreSize:
    """Bytes in the store, measured in a thread at most once a minute; readers get the last measurement."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sizes: Mapping[str, int] = {}
        self._due = 0.0
        self._measuring = threading.Lock()

    def by_kind(self) -> Mapping[str, int]:
        """Return the bytes of tensors, jobs and uploads; empty before the first measurement."""
        if time.monotonic() >= self._due and self._measuring.acquire(blocking=False):

            def measure() -> None:
                try:
                    self._sizes = self._store.stored_bytes()
                    self._due = time.monotonic() + STORE_SECONDS
                finally:
                    self._measuring.release()

            threading.Thread(target=measure, name="store-size", daemon=True).start()
        return self._sizes

    def metric(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily("ncp_store_bytes", "Stored bytes, measured once a minute", labels=["kind"])
        for kind, size in self.by_kind().items():
            family.add_metric([kind], size)
        return family
