"""Base classes of tensors, jobs and studies on the server."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

from ncp_client.http.connection import Connection

ENDED = frozenset({"succeeded", "failed", "cancelled"})


class Record(ABC):
    """Something on the server, with the last record received of it."""

    collection: ClassVar[str]

    def __init__(self, connection: Connection, record: dict[str, Any]) -> None:
        self._connection = connection
        self._path = f"/v1/{self.collection}/{record['id']}"
        self.record = record

    @property
    def id(self) -> str:
        """Id on the server."""
        return str(self.record["id"])

    @property
    def name(self) -> str | None:
        """Name, or None."""
        name: str | None = self.record["name"]
        return name

    def refresh(self) -> Self:
        """Get the current record from the server.

        Returns
        -------
        Tensor, Job or Study
            The object itself.
        """
        self.record = self._connection.get(self._path)
        return self

    def delete(self) -> None:
        """Delete it from the server with everything that belongs to it.

        Raises
        ------
        Refused
            If it is running, or needed by a job that is.
        """
        self._connection.delete(self._path)

    def __repr__(self) -> str:
        called = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__} {self.id}{called} {self._summary()}>"

    @abstractmethod
    def _summary(self) -> str: ...


class RunningRecord(Record):
    """A job or a study: something that can be watched, waited for and cancelled."""

    @property
    def state(self) -> str:
        """State: queued, running, succeeded, failed or cancelled."""
        return str(self.record["state"])

    @property
    def ended(self) -> bool:
        """Whether it has succeeded, failed or been cancelled."""
        return self.state in ENDED

    @abstractmethod
    def watch(self, timeout: float | None = None) -> Iterator[Any]: ...

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until it has ended, in whatever state.

        Parameters
        ----------
        timeout : float, optional
            Longest time to wait, in seconds.

        Returns
        -------
        Job or Study
            The object itself.

        Raises
        ------
        TimeoutError
            If it has not ended in time. It continues on the server.
        """
        if not self.ended:
            for _ in self.watch(timeout):
                pass
        return self

    def cancel(self) -> Self:
        """Ask the server to stop it, which takes at most one sweep. What was computed is kept.

        Returns
        -------
        Job or Study
            The object itself.
        """
        self.record = self._connection.call("POST", f"{self._path}/cancel", repeatable=True).json()
        return self
