"""All of Redis except the keys of the Celery broker."""

from redis.exceptions import ResponseError

from worker.claim_records import ClaimRecords
from worker.configuration import Configuration
from worker.contract import Health
from worker.errors import Unavailable
from worker.event_records import EventRecords
from worker.link import connect
from worker.old_records import OldRecords
from worker.tensor_records import TensorRecords
from worker.usage_records import UsageRecords

DURABILITY = ("appendonly", "appendfsync", "maxmemory-policy")


class Records(TensorRecords, EventRecords, ClaimRecords, UsageRecords, OldRecords):
    """Tensors, jobs, their events and their claims, and what each owner has taken. Safe to use from many threads."""

    @classmethod
    def of(cls, configuration: Configuration) -> "Records":
        return cls(connect(configuration), configuration)

    def ping(self) -> Health:
        """Is Redis there, does it keep what it is told, is anybody working?"""
        try:
            live = self.live_workers()
        except Unavailable:
            return Health(reachable=False, appendonly=False, appendfsync_always=False, noeviction=False, live_workers=0)
        found = self._durability()
        return Health(
            reachable=True,
            appendonly=found.get("appendonly") == "yes",
            appendfsync_always=found.get("appendfsync") == "always",
            noeviction=found.get("maxmemory-policy") == "noeviction",
            live_workers=live,
        )

    def _durability(self) -> dict[str, str]:
        """Empty where a hosted Redis does not let itself be asked: then nothing is promised."""
        try:
            found: dict[str, str] = self._call("CONFIG GET", *DURABILITY)
        except ResponseError:
            return {}
        return found
