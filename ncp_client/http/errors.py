"""What goes wrong between a client and a server, as exceptions with the server's own words."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class NcpError(Exception):
    """Whatever goes wrong between this client and a server."""


class FieldError(NamedTuple):
    """One refused field."""

    field: str
    problem: str
    remedy: str


class Refused(NcpError):
    """The server refused a request. `problem` is its answer, an RFC 9457 problem."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(problem)
        self.problem = dict(problem)

    @property
    def status(self) -> int:
        return int(self.problem["status"])

    @property
    def kind(self) -> str:
        """The last word of the problem's type, which is stable: `does-not-fit`, `quota-reached` …"""
        return str(self.problem.get("type", "")).rpartition(":")[2]

    @property
    def detail(self) -> str:
        return str(self.problem.get("detail") or self.problem.get("title") or f"HTTP {self.status}")

    @property
    def remedy(self) -> str | None:
        return self.problem.get("remedy")

    @property
    def errors(self) -> list[FieldError]:
        """One entry per refused field."""
        found = self.problem.get("errors") or []
        return [FieldError(one["field"], one["problem"], one["remedy"]) for one in found]

    @property
    def request_id(self) -> str | None:
        """Of the request in the server's log."""
        return self.problem.get("request_id")

    def __str__(self) -> str:
        if self.errors:
            return "; ".join(f"{field}: {problem} ({remedy})" for field, problem, remedy in self.errors)
        return f"{self.detail} ({self.remedy})" if self.remedy else self.detail


class NotFound(Refused):
    """There is no such thing, or it is somebody else's."""


class Unauthorized(Refused):
    """The key is missing, wrong or revoked."""

    @property
    def remedy(self) -> str | None:
        return "give Client(url, key), set NCP_KEY or run ncp login; the operator makes a key with ncp keys create NAME"


class RateLimited(Refused):
    """Too many requests, or too many live jobs."""

    def __init__(self, problem: Mapping[str, Any], retry_after: float | None = None) -> None:
        super().__init__(problem)
        self.args = (problem, retry_after)
        self.retry_after = retry_after


class ServerUnavailable(NcpError):
    """No answer, or one that no sparse-ncp server gives. `maybe_done`: the request may have had its effect."""

    def __init__(self, message: str, maybe_done: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message, maybe_done, retry_after)
        self.maybe_done = maybe_done
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class JobFailed(NcpError):
    """A job ended without a result: `record` tells its state and, if it failed, its error."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        super().__init__(record)
        self.record = dict(record)

    def __str__(self) -> str:
        error = self.record.get("error")
        if error:
            return f"job {self.record['id']} failed: {error['message']} ({error['remedy']})"
        return f"job {self.record['id']} is {self.record['state']}"
