"""What this process counts itself: answers, their times, clients that were too slow."""

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

# Until the answer begins: a stream lasts as long as its job, a download as long as the network needs.
BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Numbers:
    """A registry per application, not the package's global one: tests run several side by side."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._answers = Counter("ncp_requests", "Answers given", ["method", "route", "status"], registry=self.registry)
        self._seconds = Histogram(
            "ncp_request_seconds",
            "Time until the answer begins",
            ["method", "route"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._slow = Counter(
            "ncp_slow_clients", "Connections closed for being too slow", ["at"], registry=self.registry
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """`route` is a template; a method that nobody knows is one label for all."""
        known = method if method in METHODS else "other"
        self._answers.labels(known, route, status).inc()
        self._seconds.labels(known, route).observe(seconds)

    def too_slow(self, at: str) -> None:
        self._slow.labels(at).inc()
