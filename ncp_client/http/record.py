"""What tensors, jobs and studies on the server have in common: a record, and for what runs its state and its end."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

from ncp_client.http.connection import Connection

ENDED = frozenset({"succeeded", "failed", "cancelled"})


class Record(ABC):
    """Something on the server. `record` is all that the server last told of it; `refresh` asks again."""

    collection: ClassVar[str]

    def __init__(self, connection: Connection, record: dict[str, Any]) -> None:
        self._connection = connection
        self._path = f"/v1/{self.collection}/{record['id']}"
        self.record = record

    @property
    def id(self) -> str:
        return str(self.record["id"])

    @property
    def name(self) -> str | None:
        name: str | None = self.record["name"]
        return name

    def refresh(self) -> Self:
        self.record = self._connection.get(self._path)
        return self

    def delete(self) -> None:
        """Delete it with all that belongs to it; what runs, or is needed by something that does, is refused."""
        self._connection.delete(self._path)

    def __repr__(self) -> str:
        called = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__} {self.id}{called} {self._summary()}>"

    @abstractmethod
    def _summary(self) -> str: ...


class RunningRecord(Record):
    """Something that runs on the server: it can be watched, waited for and cancelled."""

    @property
    def state(self) -> str:
        """queued, running, succeeded, failed or cancelled."""
        return str(self.record["state"])

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @abstractmethod
    def watch(self, timeout: float | None = None) -> Iterator[Any]: ...

    def wait(self, timeout: float | None = None) -> Self:
        """Return once it has ended, in whatever state. TimeoutError after so many seconds; it goes on."""
        if not self.ended:
            for _ in self.watch(timeout):
                pass
        return self

    def cancel(self) -> Self:
        """End it within a sweep; what was computed stays."""
        self.record = self._connection.call("POST", f"{self._path}/cancel", repeatable=True).json()
        return self
