"""A tensor on the server."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias

from ncp_client.http.download import download
from ncp_client.http.record import Record

Axes: TypeAlias = Sequence[str | Mapping[str, Any]]


class Tensor(Record):
    """A stored tensor. `record` is all that the server tells of it."""

    collection = "tensors"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.record["shape"])

    @property
    def axes(self) -> list[dict[str, Any]] | None:
        """Name, unit and values of every mode, if it was given any."""
        return self.record.get("axes")

    @property
    def reference(self) -> dict[str, str]:
        """How a job names this tensor."""
        return {"tensor_id": self.id}

    def label(self, axes: Axes) -> None:
        """Label its modes: one `{"name": …, "unit": …, "values": […]}` each, or a name; values left out are indices."""
        lengths = [*self.shape, *[0] * len(axes)]  # the server refuses what is too much
        body = []
        for axis, length in zip(axes, lengths, strict=False):
            label = {"values": list(range(length)), **({"name": axis} if isinstance(axis, str) else axis)}
            body.append({key: value.tolist() if hasattr(value, "tolist") else value for key, value in label.items()})
        self._connection.call("PUT", f"{self._path}/axes", body=body, repeatable=True)
        self.refresh()

    def rename(self, name: str | None) -> None:
        """Give it another name, or none."""
        self.record = self._connection.call("PATCH", self._path, body={"name": name}, repeatable=True).json()

    def download(self, path: "str | PathLike[str]") -> None:
        """Its `.npy` file, whole or not at all."""
        download(self._connection, f"{self._path}/content", path)

    def _summary(self) -> str:
        return "×".join(map(str, self.shape))
