"""All records of the server in Redis, apart from Celery's messages."""

from typing import Self

from redis.exceptions import ResponseError

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Health
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.records.events import EventRecords
from sparse_ncp.worker.records.expired import ExpiredRecords
from sparse_ncp.worker.records.jobs import JobRecords
from sparse_ncp.worker.records.owners import OwnerRecords
from sparse_ncp.worker.records.redis.connection import RedisConnection
from sparse_ncp.worker.records.stats import StatsRecords
from sparse_ncp.worker.records.studies import StudyRecords
from sparse_ncp.worker.records.tensors import TensorRecords
from sparse_ncp.worker.records.uploads import UploadRecords
from sparse_ncp.worker.records.workers import WorkerRecords

DURABILITY = ("appendonly", "appendfsync", "maxmemory-policy")


class Records:
    """Records that every process may use. Processes that run jobs use `ExecutionRecords`."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection
        self.tensors = TensorRecords(connection)
        self.jobs = JobRecords(connection)
        self.studies = StudyRecords(connection)
        self.events = EventRecords(connection, self.jobs, self.studies)
        self.stats = StatsRecords(connection)
        self.owners = OwnerRecords(connection)
        self.workers = WorkerRecords(connection)
        self.expired = ExpiredRecords(connection)
        self.uploads = UploadRecords(connection)

    @classmethod
    def of(cls, configuration: Configuration, patience_seconds: float = 5.0) -> Self:
        return cls(RedisConnection.of(configuration, patience_seconds))

    def close(self) -> None:
        self._redis.close()

    def ping(self) -> Health:
        """Return whether Redis responds, writes and is durable, and the number of live workers."""
        try:
            live = self.workers.live_count()
        except Unavailable:
            return Health(reachable=False, appendonly=False, appendfsync_always=False, noeviction=False, live_workers=0)
        refusal = None
        try:
            self._redis.script("stats/check_writes", is_kept=False)
        except Unavailable as error:
            refusal = str(error)
        try:
            found: dict[str, str] = self._redis.command("CONFIG GET", *DURABILITY)
        except ResponseError:  # a hosted Redis hides its settings
            found = {}
        return Health(
            reachable=True,
            refusal=refusal,
            appendonly=found.get("appendonly") == "yes",
            appendfsync_always=found.get("appendfsync") == "always",
            noeviction=found.get("maxmemory-policy") == "noeviction",
            live_workers=live,
        )
