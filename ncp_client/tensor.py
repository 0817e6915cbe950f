"""A tensor on the server."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias

from ncp_client.http.download import download
from ncp_client.http.record import Record

Axes: TypeAlias = Sequence[str | Mapping[str, Any]]


class Tensor(Record):
    """A tensor on the server, as returned by `Client.upload` and `Client.tensor`.

    Attributes
    ----------
    record : dict
        The last record received from the server: shape, type, size, range and norm. `refresh` updates it.

    Examples
    --------
    >>> tensor = client.upload(array)
    >>> tensor.shape, tensor.record["dtype"]
    ((8, 7, 6), 'float64')
    """

    collection = "tensors"

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the modes."""
        return tuple(self.record["shape"])

    @property
    def axes(self) -> list[dict[str, Any]] | None:
        """Name, unit and values of each mode, or None without labels."""
        return self.record.get("axes")

    @property
    def reference(self) -> dict[str, str]:
        """Reference to this tensor in the fields of a job."""
        return {"tensor_id": self.id}

    def label(self, axes: Axes) -> None:
        """Label the modes.

        Parameters
        ----------
        axes : sequence of str or dict
            One entry per mode: a name, or ``{"name": …, "unit": …, "values": […]}``. Unit and values are optional;
            without values the indices are used.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> tensor.label(["sample", {"name": "emission", "unit": "nm", "values": np.arange(300, 370, 10)}, "time"])
        >>> tensor.axes[1]["unit"]
        'nm'
        """
        lengths = [*self.shape, *[0] * len(axes)]  # too many entries are refused by the server
        body = []
        for axis, length in zip(axes, lengths, strict=False):
            label = {"values": list(range(length)), **({"name": axis} if isinstance(axis, str) else axis)}
            body.append({key: value.tolist() if hasattr(value, "tolist") else value for key, value in label.items()})
        self._connection.call("PUT", f"{self._path}/axes", body=body, repeatable=True)
        self.refresh()

    def rename(self, name: str | None) -> None:
        """Change the name.

        Parameters
        ----------
        name : str or None
            The new name; None removes it.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> tensor.rename("second")
        >>> tensor.name
        'second'
        """
        self.record = self._connection.call("PATCH", self._path, body={"name": name}, repeatable=True).json()

    def download(self, path: "str | PathLike[str]") -> None:
        """Download the tensor. The file appears only when it is complete.

        Parameters
        ----------
        path : str or path
            The `.npy` file to write.

        Examples
        --------
        >>> client.upload(array).download("copy.npy")
        >>> np.array_equal(np.load("copy.npy"), array)
        True
        """
        download(self._connection, f"{self._path}/content", path)

    def _summary(self) -> str:
        return "×".join(map(str, self.shape))
