"""Numbers of one iteration of a job, of all iterations, and the progress before the first one."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Progress(NamedTuple):
    """Numbers of one iteration.

    Attributes
    ----------
    iteration : int
        Number of the iteration, from 1.
    objective, relative_error, fit : float
        Objective, relative error and fit after the iteration.
    seconds : float
        Computing time since the start of the job.
    phase : {"exact", "start", "compressed", "single"}
        What is iterated: the tensor itself, a trial start, a compressed tensor, or a copy in single precision.
    start : int or None
        Number of the trial start, from 1.

    Examples
    --------
    >>> job = client.submit(client.upload(array), rank=2, method="hals", stop={"max_iterations": 5, "tolerance": 0})
    >>> [row.iteration for row in job.watch()]
    [1, 2, 3, 4, 5]
    """

    iteration: int
    objective: float
    relative_error: float
    fit: float
    seconds: float
    phase: str = "exact"
    start: int | None = None

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Progress":
        """Create it from a record of the server; fields that this client does not know are ignored."""
        return cls(**{name: content[name] for name in cls._fields if name in content})


class Preparation(NamedTuple):
    """A step before the end of the first sweep, and the fraction of it that is done."""

    step: str
    share: float

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Preparation":
        """Create it from a record of the server."""
        return cls(str(content["step"]), float(content["share"]))


class History(NamedTuple):
    """Numbers of all iterations of a job, as returned by `Job.history`.

    Attributes
    ----------
    iteration, objective, relative_error, fit, seconds : ndarray
        One entry per iteration, as in `Progress`.
    phase, start : list
        One entry per iteration, as in `Progress`.

    Examples
    --------
    >>> job = client.submit(client.upload(array), rank=2, method="hals", stop={"max_iterations": 5, "tolerance": 0})
    >>> history = job.wait().history()
    >>> history.iteration
    array([1, 2, 3, 4, 5])
    >>> bool(np.all(np.diff(history.objective) <= 0))
    True
    """

    iteration: "NDArray[np.int64]"
    objective: "NDArray[np.float64]"
    relative_error: "NDArray[np.float64]"
    fit: "NDArray[np.float64]"
    seconds: "NDArray[np.float64]"
    phase: list[str]
    start: list[int | None]
