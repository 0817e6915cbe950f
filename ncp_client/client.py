"""The client: upload a tensor, submit a job, watch it and get its result."""

import base64
import secrets
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, Unpack, cast
from urllib.parse import quote

from ncp_client.content import Content, array_content, file_content, spooled_content
from ncp_client.fields import JobFields, StudyFields, job_body, study_body
from ncp_client.http.config import find_server
from ncp_client.http.connection import Connection
from ncp_client.http.errors import Refused, ServerUnavailable
from ncp_client.job import Job
from ncp_client.study import Study
from ncp_client.tensor import Axes, Tensor

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ncp_client.result import Result

    Source = ArrayLike | str | PathLike[str] | IO[bytes]

# The server responds to an upload after it has checked the whole tensor and written it to disk.
UPLOAD_SECONDS = 900.0


class Client:
    """A connection to a sparse-ncp server.

    Parameters
    ----------
    url : str, optional
        Address of the server. By default the variable ``NCP_URL``, then the address stored by ``ncp login``, then
        ``http://127.0.0.1:8000``.
    key : str, optional
        API key. By default the variable ``NCP_KEY``, then the key stored by ``ncp login`` for this server.
    patience_seconds : float, default 30
        How long to retry requests while the server is unavailable. Only requests that are safe to repeat are retried,
        and only after the server has been reached once.

    Examples
    --------
    >>> from ncp_client import Client
    >>> with Client() as client:
    ...     result = client.decompose(array, rank=2)
    >>> [factor.shape for factor in result.factors]
    [(8, 2), (7, 2), (6, 2)]
    """

    def __init__(self, url: str | None = None, key: str | None = None, patience_seconds: float = 30.0) -> None:
        self._connection = Connection(find_server(url, key), patience_seconds)

    @property
    def url(self) -> str:
        """Address of the server, without a trailing slash."""
        return self._connection.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. A client that is used in a ``with`` statement closes itself.

        Examples
        --------
        >>> client = Client()
        >>> client.close()
        """
        self._connection.close()

    def upload(
        self,
        source: "Source",
        name: str | None = None,
        axes: Axes | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Upload a tensor, unless the server already has the same bytes.

        Parameters
        ----------
        source : array_like, str, path or binary file
            An array, a memory map, the path of a `.npy` file, or an open binary file, which is read to its end.
        name : str, optional
            Name of the tensor.
        axes : sequence of str or dict, optional
            Labels of the modes, one entry per mode: a name, or ``{"name": …, "unit": …, "values": […]}``.
        on_progress : callable, optional
            Called with the number of bytes sent and their total.

        Returns
        -------
        Tensor
            The stored tensor.

        Raises
        ------
        Refused
            If the file is not a tensor. What its header shows is found before anything is sent.

        Examples
        --------
        >>> tensor = client.upload(array, name="first", axes=["sample", "emission", "excitation"])
        >>> tensor.shape
        (8, 7, 6)
        """
        if isinstance(source, str | PathLike):
            tensor, is_new = self._send_unless_stored(file_content(Path(source)), name, on_progress)
        elif hasattr(source, "read"):
            with spooled_content(cast(IO[bytes], source)) as content:
                tensor, is_new = self._send_unless_stored(content, name, on_progress)
        else:
            tensor, is_new = self._send_unless_stored(array_content(source), name, on_progress)
        if axes is not None:
            try:
                tensor.label(axes)
            except Refused:
                if is_new:
                    tensor.delete()
                raise
        return tensor

    def _send_unless_stored(
        self, content: Content, name: str | None, on_progress: Callable[[int, int], None] | None
    ) -> tuple[Tensor, bool]:
        """Return the tensor and whether it had to be sent."""
        digest = content.sha256()
        for record in self._connection.pages("/v1/tensors", sha256=digest.hex()):
            return self.tensor(record["id"]), False  # the records of a list have no labels

        def chunks() -> Iterator[bytes]:
            sent = 0
            for chunk in content.chunks():
                yield chunk
                sent += len(chunk)
                if on_progress is not None:
                    on_progress(sent, content.nbytes)

        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(content.nbytes),
            "Repr-Digest": f"sha-256=:{base64.b64encode(digest).decode()}:",
        }
        params = {"name": name}
        try:
            answer = self._connection.call(
                "POST", "/v1/tensors", params=params, content=chunks, headers=headers, answer_seconds=UPLOAD_SECONDS
            )
        except ServerUnavailable as error:
            if not error.maybe_done:
                raise
            raise ServerUnavailable(f"{error}; upload the tensor again: nothing is stored twice", True) from error
        return Tensor(self._connection, answer.json()), True

    def submit(self, tensor: Tensor | str, rank: int, **fields: Unpack[JobFields]) -> Job:
        """Queue the decomposition of a tensor.

        If the response is lost, the request is repeated; this never creates a second job.

        Parameters
        ----------
        tensor : Tensor or str
            The tensor, or its id.
        rank : int
            Number of components allowed.
        **fields
            Any field of a job, such as ``sparsity``, ``method`` or ``stop``. If neither ``method`` nor ``preset`` is
            given, the recommended settings are used.

        Returns
        -------
        Job
            The queued job.

        Raises
        ------
        Refused
            If the server rejects a field; `Refused.errors` lists the reasons.

        Examples
        --------
        >>> job = client.submit(client.upload(array), rank=2, method="hals", stop={"max_iterations": 50})
        >>> job.wait().state
        'succeeded'
        """
        if not isinstance(tensor, Tensor | str):
            raise TypeError("submit takes a tensor of the server: upload the array first, or use client.decompose")
        return Job(self._connection, self._submit("/v1/jobs", job_body(_id(tensor), rank, fields)))

    def study(self, tensor: Tensor | str, kind: str, **fields: Unpack[StudyFields]) -> Study:
        """Queue a study: many runs on one tensor.

        If the response is lost, the request is repeated; this never creates a second study.

        Parameters
        ----------
        tensor : Tensor or str
            The tensor, or its id.
        kind : {"compare", "choose", "stability"}
            Compare ranks, methods and weights, or choose the number of components.
        **fields
            Any field of a study, such as ``ranks``, ``methods`` and ``repeats``, or ``rank`` and ``seeds``.

        Returns
        -------
        Study
            The queued study.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> study = client.study(tensor, "compare", ranks=[1, 2], methods=["hals"], betas=[0], repeats=1)
        >>> [row["rank"] for row in study.wait().table()]
        [1, 2]
        """
        if not isinstance(tensor, Tensor | str):
            raise TypeError("study takes a tensor of the server: upload the array first")
        return Study(self._connection, self._submit("/v1/studies", study_body(_id(tensor), kind, fields)))

    def _submit(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        answer = self._connection.call("POST", path, body=body, headers=headers, repeatable=True)
        found: dict[str, Any] = answer.json()
        return found

    def decompose(
        self,
        source: "Source | Tensor",
        rank: int,
        *,
        axes: Axes | None = None,
        progress: bool | None = None,
        **fields: Unpack[JobFields],
    ) -> "Result":
        """Upload a tensor, submit a job and wait for its result.

        If the call is interrupted, the job continues on the server.

        Parameters
        ----------
        source : array_like, str, path, binary file or Tensor
            The tensor, as for `upload`, or one that is already on the server.
        rank : int
            Number of components allowed.
        axes : sequence of str or dict, optional
            Labels of the modes, as for `upload`.
        progress : bool, optional
            Show progress. By default only in a terminal or a notebook.
        **fields
            Any field of a job, as for `submit`.

        Returns
        -------
        Result
            Factors and numbers of the model.

        Raises
        ------
        JobFailed
            If the job ends without a result.

        Examples
        --------
        >>> result = client.decompose(array, rank=2, sparsity=0.02)
        >>> result.components
        2
        """
        from ncp_client.progress import upload_bar, visible_console, watch_live

        shown = visible_console() is not None if progress is None else progress
        if isinstance(source, Tensor):
            tensor = source
        elif shown:
            with upload_bar() as advance:
                tensor = self.upload(source, fields.get("name"), axes, advance)
        else:
            tensor = self.upload(source, fields.get("name"), axes)
        job = self.submit(tensor, rank, **fields)
        return (watch_live(job) if shown else job.wait()).result

    def job(self, job_id: str) -> Job:
        """Return the job with an id.

        Parameters
        ----------
        job_id : str
            Id of the job.

        Returns
        -------
        Job
            The job with its current record.

        Raises
        ------
        NotFound
            If there is no such job, or it belongs to someone else.

        Examples
        --------
        >>> submitted = client.submit(client.upload(array), rank=2)
        >>> client.job(submitted.id).wait().state
        'succeeded'
        """
        return Job(self._connection, self._connection.get(f"/v1/jobs/{_segment(job_id)}"))

    def get_study(self, study_id: str) -> Study:
        """Return the study with an id.

        Parameters
        ----------
        study_id : str
            Id of the study.

        Returns
        -------
        Study
            The study with its current record.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> study = client.study(tensor, "compare", ranks=[2], methods=["hals"], betas=[0], repeats=1)
        >>> client.get_study(study.id).kind
        'compare'
        """
        return Study(self._connection, self._connection.get(f"/v1/studies/{_segment(study_id)}"))

    def studies(self) -> Iterator[Study]:
        """Iterate over your studies, newest first. They have no tables until `Study.refresh` is called.

        Yields
        ------
        Study
            One study after the other.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> study = client.study(tensor, "compare", ranks=[2], methods=["hals"], betas=[0], repeats=1)
        >>> next(client.studies()).id == study.id
        True
        """
        for record in self._connection.pages("/v1/studies", limit=100):
            yield Study(self._connection, record)

    def tensor(self, tensor_id: str) -> Tensor:
        """Return the tensor with an id.

        Parameters
        ----------
        tensor_id : str
            Id of the tensor.

        Returns
        -------
        Tensor
            The tensor with its current record.

        Examples
        --------
        >>> uploaded = client.upload(array)
        >>> client.tensor(uploaded.id).shape
        (8, 7, 6)
        """
        return Tensor(self._connection, self._connection.get(f"/v1/tensors/{_segment(tensor_id)}"))

    def jobs(
        self,
        state: str | None = None,
        method: str | None = None,
        tensor: Tensor | str | None = None,
        name: str | None = None,
    ) -> Iterator[Job]:
        """Iterate over your jobs, newest first.

        Parameters
        ----------
        state : {"queued", "running", "succeeded", "failed", "cancelled"}, optional
            Only jobs in this state.
        method : str, optional
            Only jobs of this method.
        tensor : Tensor or str, optional
            Only jobs on this tensor, or on the tensor with this id.
        name : str, optional
            Only jobs whose name contains this text, in upper or lower case.

        Yields
        ------
        Job
            One job after the other.

        Examples
        --------
        >>> job = client.submit(client.upload(array), rank=2, name="Batch 7")
        >>> next(client.jobs(name="batch")).id == job.id
        True
        """
        asked = {"state": state, "method": method, "tensor_id": tensor.id if isinstance(tensor, Tensor) else tensor}
        for record in self._connection.pages("/v1/jobs", **asked, name=name, limit=100):
            yield Job(self._connection, record)

    def tensors(self, sha256: str | None = None, name: str | None = None) -> Iterator[Tensor]:
        """Iterate over your tensors, newest first. They have no axes until `Tensor.refresh` is called.

        Parameters
        ----------
        sha256 : str, optional
            Only tensors whose `.npy` file has this SHA-256 digest, in hexadecimal.
        name : str, optional
            Only tensors whose name contains this text, in upper or lower case.

        Yields
        ------
        Tensor
            One tensor after the other.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> [found.shape for found in client.tensors(sha256=tensor.record["sha256"])]
        [(8, 7, 6)]
        """
        for record in self._connection.pages("/v1/tensors", sha256=sha256, name=name, limit=100):
            yield Tensor(self._connection, record)

    def methods(self) -> list[dict[str, Any]]:
        """Return the methods of the server.

        Returns
        -------
        list of dict
            Name, title and properties of each method.

        Examples
        --------
        >>> "anls-bpp" in [method["name"] for method in client.methods()]
        True
        """
        found: list[dict[str, Any]] = self._connection.get("/v1/methods")
        return found

    def usage(self) -> dict[str, Any]:
        """Return what you use of the server, and your limits.

        Returns
        -------
        dict
            The owner of the key, the numbers of bytes and live jobs in use, and the limits.

        Examples
        --------
        >>> client.usage()["owner"]
        'local'
        """
        found: dict[str, Any] = self._connection.get("/v1/usage")
        return found

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"


def _id(tensor: Tensor | str) -> str:
    return tensor if isinstance(tensor, str) else tensor.id


def _segment(identifier: str) -> str:
    """Return an id as one segment of a path, whatever characters it has."""
    return quote(identifier, safe="") or "-"
