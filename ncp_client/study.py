"""A study on the server: watch it, wait for it, get its table, plots and advice."""

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
# Parts of a spread, which become columns of the table.
PARTS = ("mean", "deviation")


class Step(NamedTuple):
    """Progress of a study, from 0 to 1, with the event that reported it."""

    progress: float
    content: dict[str, Any]


class Study(RunningRecord):
    """A study on the server, as returned by `Client.study` and `Client.get_study`.

    Attributes
    ----------
    record : dict
        The last record received from the server: state, request, numbers of runs, table or advice. `refresh` updates
        it.

    Examples
    --------
    >>> tensor = client.upload(array)
    >>> study = client.study(tensor, "compare", ranks=[1, 2], methods=["hals"], betas=[0], repeats=1)
    >>> study.wait().state
    'succeeded'
    >>> [row["rank"] for row in study.table()]
    [1, 2]
    """

    collection = "studies"

    @property
    def kind(self) -> str:
        """Kind of study: compare, choose or stability."""
        return str(self.record["kind"])

    @property
    def advice(self) -> dict[str, Any] | None:
        """Number of components, confidence and reason of a choice that has ended; None for a comparison."""
        advice: dict[str, Any] | None = self.record["advice"]
        return advice

    @property
    def recommendation(self) -> dict[str, Any] | None:
        """Rank, weight and method that a comparison recommends, as a `title` and the evidence in `sentences`.

        None for a choice, before the comparison has ended, and if no run succeeded.
        """
        recommendation: dict[str, Any] | None = self.record.get("recommendation")
        return recommendation

    def watch(self, timeout: float | None = None) -> Iterator[Step]:
        """Iterate over the runs of a comparison as they end, or over the steps of a choice.

        The iteration continues even if the connection is lost or the server is restarted.

        Parameters
        ----------
        timeout : float, optional
            Longest time to watch, in seconds.

        Yields
        ------
        Step
            Progress of the study, from 0 to 1.

        Raises
        ------
        TimeoutError
            If the study has not ended in time. It continues on the server.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> study = client.study(tensor, "compare", ranks=[1, 2], methods=["hals"], betas=[0], repeats=1)
        >>> [step.progress for step in study.watch()]
        [0.5, 1.0]
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
        """Iterate over the jobs of the study, newest first.

        Parameters
        ----------
        state : {"queued", "running", "succeeded", "failed", "cancelled"}, optional
            Only jobs in this state.

        Yields
        ------
        Job
            One job after the other.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> study = client.study(tensor, "compare", ranks=[1, 2], methods=["hals"], betas=[0], repeats=1).wait()
        >>> len(list(study.runs(state="succeeded")))
        2
        """
        for record in self._connection.pages("/v1/jobs", study_id=self.id, state=state, limit=100):
            yield Job(self._connection, record)

    def table(self, mode: int | None = None) -> list[dict[str, Any]]:
        """Return the table of a comparison, for the runs that have ended so far.

        Parameters
        ----------
        mode : int, optional
            Mode whose sparsity, components and PSNR are shown, counted from 1.

        Returns
        -------
        list of dict
            One row per setting, with columns such as ``objective_mean`` and ``objective_deviation``.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> study = client.study(tensor, "compare", ranks=[1, 2], methods=["hals"], betas=[0], repeats=1).wait()
        >>> low, high = study.table()
        >>> high["relative_error_mean"] < low["relative_error_mean"]
        True
        """
        answer = self._connection.call("GET", f"{self._path}/table", params={"mode": mode}).json()
        return [_flat(row) for row in answer["rows"]]

    def notes(self) -> list[str]:
        """Return what to know before the rows of a comparison are compared.

        Returns
        -------
        list of str
            Which rows have different penalties, so that their objectives are different functions, and how many runs
            ended with a warning. The column ``warnings`` of `table` has the texts.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> grid = {"ranks": [2], "methods": ["hals", "anls-bpp"], "betas": [0.1], "repeats": 1}
        >>> study = client.study(tensor, "compare", **grid, penalty=None).wait()
        >>> "different functions" in study.notes()[0]
        True
        """
        found: list[str] = self._connection.call("GET", f"{self._path}/table").json()["notes"]
        return found

    def ranks(self) -> list[dict[str, Any]]:
        """Return core consistency and validations of a comparison, by rank.

        Returns
        -------
        list of dict
            One row per rank.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> study = client.study(tensor, "compare", ranks=[1, 2], methods=["hals"], betas=[0], repeats=1).wait()
        >>> [row["rank"] for row in study.ranks()]
        [1, 2]
        """
        found: list[dict[str, Any]] = self._connection.call("GET", f"{self._path}/table").json()["ranks"]
        return found

    def frame(self, mode: int | None = None) -> "pandas.DataFrame":
        """Return the table as a pandas data frame. pandas must be installed.

        Parameters
        ----------
        mode : int, optional
            As for `table`.

        Returns
        -------
        pandas.DataFrame
            The rows of `table`.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> study = client.study(tensor, "compare", ranks=[1, 2], methods=["hals"], betas=[0], repeats=1).wait()
        >>> len(study.frame())
        2
        """
        import pandas

        return pandas.DataFrame(self.table(mode))

    def save_table(self, path: "str | PathLike[str]", mode: int | None = None) -> None:
        """Save the table to a file, which appears only when it is complete.

        Parameters
        ----------
        path : str or path
            The file to write; it must end in `.csv`, `.tex` or `.json`.
        mode : int, optional
            As for `table`.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> study = client.study(tensor, "compare", ranks=[1, 2], methods=["hals"], betas=[0], repeats=1).wait()
        >>> study.save_table("table.csv")
        """
        format = TABLES.get(_ending(path))
        if format is None:
            raise ValueError(f"{path}: give a file that ends in .csv, .tex or .json")
        download(self._connection, f"{self._path}/table", path, format=format, mode=mode)

    def plot(self, name: str, path: "str | PathLike[str]", mode: int | None = None) -> None:
        """Save a plot of the study.

        Parameters
        ----------
        name : {"objective", "quality", "path", "choice", "components"}
            The first three belong to a comparison, ``choice`` to a choice, and ``components`` to both.
        path : str or path
            The file to write; it must end in `.svg`, `.png` or `.pdf`.
        mode : int, optional
            Mode that ``quality`` shows, counted from 1.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> study = client.study(tensor, "compare", ranks=[1, 2], methods=["hals"], betas=[0], repeats=1).wait()
        >>> study.plot("objective", "objective.svg")
        """
        if _ending(path) not in PICTURES:
            raise ValueError(f"{path}: give a file that ends in .svg, .png or .pdf")
        if name not in PLOTS:
            raise ValueError(f"there is no plot {name}; choose one of {', '.join(PLOTS)}")
        download(self._connection, f"{self._path}/plots/{name}", path, format=_ending(path), mode=mode)

    @property
    def job(self) -> Job:
        """Job with the factors of the chosen model."""
        if self.record["job_id"] is None:
            raise NcpError(f"study {self.id} is a comparison: see the column best of its table, or runs()")
        return Job(self._connection, self._connection.get(f"/v1/jobs/{self.record['job_id']}"))

    @property
    def result(self) -> "Result":
        """Result of the chosen model, after a choice has ended."""
        return self.job.result

    def _summary(self) -> str:
        return f"{self.kind} {self.state}"


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with one column for each part of a spread; missing values are None."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in SPREADS:
            flat |= {f"{name}_{part}": None if value is None else value[part] for part in PARTS}
        else:
            flat[name] = value
    return flat


SPREADS = (
    "objective", "relative_error", "seconds", "iterations", "sparsity", "components", "mode_components",
    "factor_match", "psnr",
)  # fmt: skip


def _ending(path: "str | PathLike[str]") -> str:
    return PurePath(path).suffix.removeprefix(".").lower()
