"""Exceptions of the client."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class NcpError(Exception):
    """Base class of the client's exceptions.

    Examples
    --------
    >>> from ncp_client import NcpError
    >>> try:
    ...     client.job("unknown")
    ... except NcpError as error:
    ...     print(error)
    job_id: there is no job unknown (name one of your own)
    """


class FieldError(NamedTuple):
    """One rejected field of a request.

    Attributes
    ----------
    field : str
        Name of the field, such as ``beta`` or ``stop.tolerance``.
    problem : str
        What is wrong with its value.
    remedy : str
        What to do about it.

    Examples
    --------
    >>> from ncp_client import Refused
    >>> try:
    ...     client.submit(client.upload(array), rank=2, beta=-1.0)
    ... except Refused as refused:
    ...     print([error.field for error in refused.errors])
    ['beta']
    """

    field: str
    problem: str
    remedy: str


class Refused(NcpError):
    """The server refused a request, or the client a file that the server would refuse.

    Attributes
    ----------
    problem : dict
        The response of the server, a problem document (RFC 9457), or what it would be.

    Examples
    --------
    >>> from ncp_client import Refused
    >>> try:
    ...     client.submit(client.upload(array), rank=0)
    ... except Refused as error:
    ...     print(error.status, error.errors[0].field)
    422 rank
    """

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(problem)
        self.problem = dict(problem)

    @property
    def status(self) -> int:
        """HTTP status code."""
        return int(self.problem["status"])

    @property
    def kind(self) -> str:
        """Stable identifier of the problem, such as ``quota-reached``: the last part of its type."""
        return str(self.problem.get("type", "")).rpartition(":")[2]

    @property
    def detail(self) -> str:
        """Description of the problem."""
        return str(self.problem.get("detail") or self.problem.get("title") or f"HTTP {self.status}")

    @property
    def remedy(self) -> str | None:
        """Suggested remedy, or None."""
        return self.problem.get("remedy")

    @property
    def errors(self) -> list[FieldError]:
        """Rejected fields, one entry each."""
        found = self.problem.get("errors") or []
        return [FieldError(one["field"], one["problem"], one["remedy"]) for one in found]

    @property
    def request_id(self) -> str | None:
        """Id of the request in the log of the server."""
        return self.problem.get("request_id")

    def __str__(self) -> str:
        if self.errors:
            return "; ".join(f"{field}: {problem} ({remedy})" for field, problem, remedy in self.errors)
        return f"{self.detail} ({self.remedy})" if self.remedy else self.detail


class NotFound(Refused):
    """The object does not exist, or belongs to someone else.

    Examples
    --------
    >>> from ncp_client import NotFound
    >>> try:
    ...     client.tensor("unknown")
    ... except NotFound as error:
    ...     print(error.status)
    404
    """


class Unauthorized(Refused):
    """The API key is missing, wrong or revoked.

    Examples
    --------
    >>> from ncp_client import Unauthorized
    >>> error = Unauthorized({"status": 401, "detail": "this server needs a key"})
    >>> print(error.detail)
    this server needs a key
    """

    @property
    def remedy(self) -> str | None:
        """How to provide a key."""
        return "give Client(url, key), set NCP_KEY or run ncp login; the operator makes a key with ncp keys create NAME"


class RateLimited(Refused):
    """Too many requests or too many live jobs.

    Attributes
    ----------
    retry_after : float or None
        Seconds to wait before another attempt, if the server says so.

    Examples
    --------
    >>> from ncp_client import RateLimited
    >>> RateLimited({"status": 429, "detail": "too many requests"}, retry_after=2.0).retry_after
    2.0
    """

    def __init__(self, problem: Mapping[str, Any], retry_after: float | None = None) -> None:
        super().__init__(problem)
        self.args = (problem, retry_after)
        self.retry_after = retry_after


class ServerUnavailable(NcpError):
    """The server cannot be reached, or the response is not that of a sparse-ncp server.

    Attributes
    ----------
    maybe_done : bool
        Whether the request may have been carried out.
    retry_after : float or None
        Seconds to wait before another attempt, if the server says so.

    Examples
    --------
    >>> from ncp_client import Client, ServerUnavailable
    >>> try:
    ...     Client("http://127.0.0.1:1").usage()
    ... except ServerUnavailable as error:
    ...     print(error.maybe_done)
    False
    """

    def __init__(self, message: str, maybe_done: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message, maybe_done, retry_after)
        self.maybe_done = maybe_done
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class JobFailed(NcpError):
    """A job ended without a result.

    Attributes
    ----------
    record : dict
        Record of the job, with its state and, if it failed, its error.

    Examples
    --------
    >>> from ncp_client import JobFailed
    >>> print(JobFailed({"id": "7", "state": "cancelled"}))
    job 7 is cancelled
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        super().__init__(record)
        self.record = dict(record)

    def __str__(self) -> str:
        error = self.record.get("error")
        if error:
            return f"job {self.record['id']} failed: {error['message']} ({error['remedy']})"
        return f"job {self.record['id']} is {self.record['state']}"
