"""Exceptions of jobs, records and stores. `app/errors/handlers.py` maps each of them to an HTTP response."""

from collections.abc import Sequence

from sparse_ncp.solvers import InvalidInput


class NotFound(LookupError):
    """A tensor, job or study that does not exist or belongs to another owner: callers cannot distinguish the two.

    `others` are further missing things that the same request names.
    """

    def __init__(self, kind: str, id: str, field: str | None = None, others: Sequence["NotFound"] = ()) -> None:
        super().__init__(f"there is no {kind} {id}")
        self.others = tuple(others)
        self.kind = kind
        self.id = id
        self.field = field or (f"{kind}_id" if kind in ("tensor", "job", "study") else kind)


class LaterRecord(Exception):
    """A record that a later release has written, which this one cannot read."""

    def __init__(self, kind: str, id: str) -> None:
        super().__init__(f"{kind} {id} was written by a later release of the server")


class LaterFormat(Exception):
    """A data folder or a Redis that a later release has written in a format which this one would misread."""


class OldRedis(Exception):
    """A Redis that lacks what the scripts need."""


class InUse(Exception):
    """A tensor or job that a queued or running job still needs."""

    def __init__(self, kind: str, id: str) -> None:
        super().__init__(f"{kind} {id} is needed by a job that is queued or running")
        self.kind = kind
        self.id = id


class JobNotFinished(Exception):
    """A job that cannot be deleted because it is queued or running."""

    def __init__(self, id: str) -> None:
        super().__init__(f"job {id} is queued or running")
        self.id = id


class PartOfStudy(Exception):
    """A run of a study, which can only be deleted with its study."""

    def __init__(self, id: str) -> None:
        super().__init__(f"job {id} is a run of a study")
        self.id = id


class StudyNotFinished(Exception):
    """A study that cannot be deleted because it is queued or running."""

    def __init__(self, id: str) -> None:
        super().__init__(f"study {id} is queued or running")
        self.id = id


class NothingYet(Exception):
    """A result of a study that is not available yet."""

    def __init__(self, id: str, what: str) -> None:
        super().__init__(f"study {id} has no {what} yet")


class IdempotencyKeyReused(Exception):
    """An idempotency key that was used before with a different body."""


class TooManyJobs(Exception):
    """The owner has reached the limit of live jobs."""

    def __init__(self, limit: int) -> None:
        jobs = "1 job" if limit == 1 else f"{limit} jobs"
        super().__init__(f"you have {jobs} queued or running, as many as you may have")


class TooManyRuns(Exception):
    """The runs of a study and those of the owner's live studies would exceed the limit of the owner."""

    def __init__(self, limit: int, live: int) -> None:
        runs = "1 run" if live == 1 else f"{live:,} runs"
        super().__init__(f"your studies have {runs} left of at most {limit:,}, so {limit - live:,} more fit")


class QuotaReached(Exception):
    """The owner has reached the limit of stored bytes, which counts those that live jobs have reserved.

    `results` are the bytes that the results of a refused job or study may take, `fitting` the runs of the study that
    would fit, and all of its runs.
    """

    def __init__(
        self, limit: int, stored: int, more: int = 0, results: int = 0, fitting: tuple[int, int] | None = None
    ) -> None:
        tensor = f"; this tensor has {more}" if more else ""
        found = f"; the results may take {results}" if results else ""
        runs = "" if fitting is None else f", so {fitting[0]:,} of the {fitting[1]:,} runs fit"
        stores = f"you store {stored} of at most {limit} bytes"
        super().__init__(f"{stores}{', reservations of your jobs included' if results else ''}{tensor}{found}{runs}")


class TooManyLabels(Exception):
    """The labels of an owner's tensors and jobs would exceed the limit of bytes."""

    def __init__(self, limit: int, held: int, more: int) -> None:
        super().__init__(
            f"the labels of your tensors and jobs take {held} of at most {limit} bytes; the new ones take {more}"
        )


class HistoryTooLarge(Exception):
    """The history of a running job has passed the quota of its owner."""

    def __init__(self) -> None:
        super().__init__("it was stopped because its history exceeds your quota of stored bytes")


class NoFactorsYet(Exception):
    """A job without factors, because it has not reached its first checkpoint or ended before it."""

    def __init__(self, id: str) -> None:
        super().__init__(f"job {id} has no factors yet")
        self.id = id


class NoDiagnostics(Exception):
    """A job that ended without diagnostics."""

    def __init__(self, id: str, reason: str, remedy: str) -> None:
        super().__init__(f"job {id} has no diagnostics: {reason}")
        self.remedy = remedy


class NoStability(Exception):
    """A job that ended without an assessment of its stability."""

    def __init__(self, id: str, reason: str, remedy: str) -> None:
        super().__init__(f"job {id} has no stability: {reason}")
        self.remedy = remedy


class StoreFull(OSError):
    """The disk is full."""


class StoreUnavailable(OSError):
    """The disk is temporarily unusable: read-only, failing or not mounted."""


class CorruptFile(Exception):
    """A stored file that no longer matches its digest."""


class RenderingRefused(Exception):
    """An export, plot, table or slice that cannot be made now: too many are waiting, or its process was killed."""

    def __init__(self, reason: str, wait_seconds: int) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class RenderingTooLong(Exception):
    """An export, plot, table or slice that takes longer than is allowed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"this takes longer to make than the {seconds:g} s that are allowed")


class RenderingTooLarge(Exception):
    """An export, plot, table or slice that needs more memory than is allowed."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"this needs more memory to make than the {nbytes} bytes that are allowed")


class Unavailable(ConnectionError):
    """Redis does not respond, or cannot write."""


class WritesRefused(Unavailable):
    """Redis answers, but refuses to write for now."""


class OutcomeUnknown(Unavailable):
    """Redis was sent a change and did not answer, so the change may have been made.

    `kind` and `id` name what may have been created.
    """

    def __init__(self, message: str, kind: str | None = None, id: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.id = id


class BadTensor(InvalidInput):
    """An uploaded file that is not a tensor which can be decomposed."""


class InvalidJob(InvalidInput):
    """A request that does not fit the tensor, the caller's limits or the memory that a job may use.

    `problems` lists everything that is wrong; the attributes of InvalidInput describe the first problem.
    """

    def __init__(self, problems: Sequence[InvalidInput | NotFound]) -> None:
        first = next(problem for problem in problems if isinstance(problem, InvalidInput))
        super().__init__(first.field, first.problem, first.remedy)
        self.problems = tuple(problems)
