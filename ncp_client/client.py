"""Client: upload once, submit, watch, take the result."""

import base64
import secrets
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, Unpack, cast
from urllib.parse import quote

from ncp_client.fields import JobFields, StudyFields, job_body, study_body
from ncp_client.http.config import find_server
from ncp_client.http.connection import Connection
from ncp_client.http.errors import Refused, ServerUnavailable
from ncp_client.job import Job
from ncp_client.npy import Content, array_content, file_content, spooled_content
from ncp_client.study import Study
from ncp_client.tensor import Axes, Tensor

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ncp_client.result import Result

    Source = ArrayLike | str | PathLike[str] | IO[bytes]

# The server answers an upload when it has checked the whole tensor and has it on disk.
UPLOAD_SECONDS = 900.0


class Client:
    """A sparse-ncp server. Without arguments it is found by NCP_URL and NCP_KEY, what `ncp login` stored, or here.

    Requests that can do no harm twice are repeated for `patience_seconds` while a server that was there is away.
    """

    def __init__(self, url: str | None = None, key: str | None = None, patience_seconds: float = 30.0) -> None:
        self._connection = Connection(find_server(url, key), patience_seconds)

    @property
    def url(self) -> str:
        return self._connection.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def upload(
        self,
        source: "Source",
        name: str | None = None,
        axes: Axes | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Upload an array, a memory map, or the `.npy` file at a path, unless the server has its very bytes.

        `axes` labels the modes: one `{"name": …, "unit": …, "values": […]}` each, or a name. `on_progress` is called
        with the bytes sent and their total. An open binary file, such as standard input, is read to its end.
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
        """The tensor, and whether it had to be sent."""
        digest = content.sha256()
        for record in self._connection.pages("/v1/tensors", sha256=digest.hex()):
            return self.tensor(record["id"]), False  # lists leave the labels out

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
        """Queue a decomposition of a tensor, or of the one with this id. Without a method it is the recommended one.

        Every field of a job can be given by its name. The request is sent again if its answer was lost; it is one job.
        """
        if not isinstance(tensor, Tensor | str):
            raise TypeError("submit takes a tensor of the server: upload the array first, or use client.decompose")
        return Job(self._connection, self._submit("/v1/jobs", job_body(_id(tensor), rank, fields)))

    def study(self, tensor: Tensor | str, kind: str, **fields: Unpack[StudyFields]) -> Study:
        """Queue a study of a tensor: `compare` ranks, methods and weights, or `choose` the number of components.

        Every field of a study can be given by its name. The request is sent again if its answer was lost; it is one.
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
        """Upload, submit, wait: the result. `progress` shows bars; by default where somebody can see them.

        JobFailed if the job ends without a result. Interrupted, the job goes on on the server.
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
        return Job(self._connection, self._connection.get(f"/v1/jobs/{_segment(job_id)}"))

    def get_study(self, study_id: str) -> Study:
        return Study(self._connection, self._connection.get(f"/v1/studies/{_segment(study_id)}"))

    def studies(self) -> Iterator[Study]:
        """Your studies, newest first, over all pages; without their tables, which `refresh` brings."""
        for record in self._connection.pages("/v1/studies", limit=100):
            yield Study(self._connection, record)

    def tensor(self, tensor_id: str) -> Tensor:
        return Tensor(self._connection, self._connection.get(f"/v1/tensors/{_segment(tensor_id)}"))

    def jobs(
        self,
        state: str | None = None,
        method: str | None = None,
        tensor: Tensor | str | None = None,
        name: str | None = None,
    ) -> Iterator[Job]:
        """Your jobs, newest first, over all pages; `name` is a part of it, in any case."""
        asked = {"state": state, "method": method, "tensor_id": tensor.id if isinstance(tensor, Tensor) else tensor}
        for record in self._connection.pages("/v1/jobs", **asked, name=name, limit=100):
            yield Job(self._connection, record)

    def tensors(self, sha256: str | None = None, name: str | None = None) -> Iterator[Tensor]:
        """Your tensors, newest first, over all pages; `name` is a part of it, in any case."""
        for record in self._connection.pages("/v1/tensors", sha256=sha256, name=name, limit=100):
            yield Tensor(self._connection, record)

    def methods(self) -> list[dict[str, Any]]:
        """The methods that a job may name, and what they promise."""
        found: list[dict[str, Any]] = self._connection.get("/v1/methods")
        return found

    def usage(self) -> dict[str, Any]:
        """What you have taken, and your limits."""
        found: dict[str, Any] = self._connection.get("/v1/usage")
        return found

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"


def _id(tensor: Tensor | str) -> str:
    return tensor if isinstance(tensor, str) else tensor.id


def _segment(identifier: str) -> str:
    """An id as one piece of a path, whatever was typed."""
    return quote(identifier, safe="") or "-"
