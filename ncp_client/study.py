"""A study on the server: watch it, wait for it, take its table, its pictures and its advice."""

import time
from collections.abc import Iterator
from os import PathLike
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from ncp_client.http.download import download
from ncp_client.http.errors import NcpError
from ncp_client.http.events import follow_events
from ncp_client.http.record import RunningRecord
from ncp_client.job import Job

if TYPE_CHECKING:
    import pandas

    from ncp_client.result import Result

PLOTS = ("objective", "quality", "path", "choice", "components")
PICTURES = ("svg", "png", "pdf")
TABLES = {"csv": "csv", "tex": "latex", "json": "json"}
# Columns of a table that hold mean and standard deviation.
PARTS = ("mean", "deviation")


class Step(NamedTuple):
    """How far a study has come: from 0 to 1, and what has just ended."""

    progress: float
    content: dict[str, Any]


class Study(RunningRecord):
    """A study. `record` is all that the server last told of it; `refresh` asks again."""

    collection = "studies"

    @property
    def kind(self) -> str:
        """compare or choose."""
        return str(self.record["kind"])

    @property
    def advice(self) -> dict[str, Any] | None:
        """How many components, how sure, and why; None for a comparison, and before a choice has ended."""
        advice: dict[str, Any] | None = self.record["advice"]
        return advice

    def watch(self, timeout: float | None = None) -> Iterator[Step]:
        """Every run as it ends, or every step of a choice, whatever happens to connection and server.

        The record follows: when the iterator ends, so has the study.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for event in follow_events(self._connection, f"{self._path}/events", deadline):
            content = event.content
            if event.kind == "run":
                yield Step(content["done"] / content["total"], content)
            elif event.kind == "progress":
                yield Step(content["progress"], content)
        self.refresh()

    def runs(self, state: str | None = None) -> Iterator[Job]:
        """Its jobs, newest first."""
        for record in self._connection.pages("/v1/jobs", study_id=self.id, state=state, limit=100):
            yield Job(self._connection, record)

    def table(self, mode: int | None = None) -> list[dict[str, Any]]:
        """One dictionary per cell of a comparison, of what has ended so far: `objective_mean`, `psnr_deviation` …"""
        answer = self._connection.call("GET", f"{self._path}/table", params={"mode": mode}).json()
        return [_flat(row) for row in answer["rows"]]

    def ranks(self) -> list[dict[str, Any]]:
        """One dictionary per rank of a comparison: core consistency, and what the validations found."""
        found: list[dict[str, Any]] = self._connection.call("GET", f"{self._path}/table").json()["ranks"]
        return found

    def frame(self, mode: int | None = None) -> "pandas.DataFrame":
        """The table as a pandas frame, which must be installed."""
        import pandas

        return pandas.DataFrame(self.table(mode))

    def save_table(self, path: "str | PathLike[str]", mode: int | None = None) -> None:
        """The table as a file: `.csv`, `.tex` or `.json`, whole or not at all."""
        format = TABLES.get(_ending(path))
        if format is None:
            raise ValueError(f"{path}: name a file that ends in .csv, .tex or .json")
        download(self._connection, f"{self._path}/table", path, format=format, mode=mode)

    def plot(self, name: str, path: "str | PathLike[str]", mode: int | None = None) -> None:
        """Save a picture: objective, quality or path of a comparison, choice of a choice, components of both."""
        if _ending(path) not in PICTURES:
            raise ValueError(f"{path}: name a file that ends in .svg, .png or .pdf")
        if name not in PLOTS:
            raise ValueError(f"there is no plot {name}; choose one of {', '.join(PLOTS)}")
        download(self._connection, f"{self._path}/plots/{name}", path, format=_ending(path), mode=mode)

    @property
    def job(self) -> Job:
        """The job of a choice, which has the factors of the chosen model."""
        if self.record["job_id"] is None:
            raise NcpError(f"study {self.id} is a comparison: best in its table names jobs, runs() has all of them")
        return Job(self._connection, self._connection.get(f"/v1/jobs/{self.record['job_id']}"))

    @property
    def result(self) -> "Result":
        """The chosen model of a choice that has ended."""
        return self.job.result

    def _summary(self) -> str:
        return f"{self.kind} {self.state}"


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row without anything nested. Nothing stands for nothing."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in SPREADS:
            flat |= {f"{name}_{part}": None if value is None else value[part] for part in PARTS}
        else:
            flat[name] = value
    return flat


SPREADS = (
    "objective", "relative_error", "seconds", "iterations", "sparsity", "components", "factor_match", "psnr",
)  # fmt: skip


def _ending(path: "str | PathLike[str]") -> str:
    return PurePath(path).suffix.removeprefix(".").lower()
