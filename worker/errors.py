"""What jobs, records and stores refuse or cannot do. `app/errors/handlers.py` maps each to an answer."""

from collections.abc import Sequence

from sparse_ncp.solvers import InvalidInput


class NotFound(LookupError):
    """No such tensor or job, or not the caller's own: a caller cannot tell one from the other.

    `others` are further ones that the same request names.
    """

    def __init__(self, kind: str, id: str, field: str | None = None, others: Sequence["NotFound"] = ()) -> None:
        super().__init__(f"there is no {kind} {id}")
        self.others = tuple(others)
        self.kind = kind
        self.id = id
        self.field = field or (f"{kind}_id" if kind in ("tensor", "job", "study") else kind)


class InUse(Exception):
    """Something that a queued or running job still needs."""

    def __init__(self, kind: str, id: str) -> None:
        super().__init__(f"{kind} {id} is needed by a job that is queued or running")
        self.kind = kind
        self.id = id


class JobNotFinished(Exception):
    """A queued or running job, which cannot be deleted."""

    def __init__(self, id: str) -> None:
        super().__init__(f"job {id} is queued or running")
        self.id = id


class PartOfStudy(Exception):
    """A run of a study, which is deleted with its study only."""

    def __init__(self, id: str) -> None:
        super().__init__(f"job {id} is a run of a study")
        self.id = id


class StudyNotFinished(Exception):
    """A queued or running study, which cannot be deleted."""

    def __init__(self, id: str) -> None:
        super().__init__(f"study {id} is queued or running")
        self.id = id


class NothingYet(Exception):
    """A study that has not come so far as to answer this."""

    def __init__(self, id: str, what: str) -> None:
        super().__init__(f"study {id} has no {what} yet")


class IdempotencyKeyReused(Exception):
    """The idempotency key was used before, with another body."""


class TooManyJobs(Exception):
    """The owner has as many live jobs as they may have."""

    def __init__(self, limit: int) -> None:
        jobs = "1 job" if limit == 1 else f"{limit} jobs"
        super().__init__(f"you have {jobs} queued or running, as many as you may have")


class QuotaReached(Exception):
    """The owner stores as much as they may."""

    def __init__(self, limit: int, stored: int, more: int = 0) -> None:
        tensor = f"; this tensor has {more}" if more else ""
        super().__init__(f"you store {stored} of the {limit} bytes you may store{tensor}")


class NoFactorsYet(Exception):
    """The job has no factors yet: it has not reached its first checkpoint, or ended before it."""

    def __init__(self, id: str) -> None:
        super().__init__(f"job {id} has no factors yet")
        self.id = id


class NoDiagnostics(Exception):
    """The job has ended without diagnostics."""

    def __init__(self, id: str, reason: str, remedy: str) -> None:
        super().__init__(f"job {id} has no diagnostics: {reason}")
        self.remedy = remedy


class StoreFull(OSError):
    """The disk has no room left."""


class StoreUnavailable(OSError):
    """The disk cannot be used for now: mounted read-only, failing, or away. It may come back."""


class CorruptFile(Exception):
    """A stored file whose bytes do not match its digest any more."""


class Unavailable(ConnectionError):
    """Redis does not answer, or cannot write."""


class BadTensor(InvalidInput):
    """The uploaded file is not a tensor that can be decomposed."""


class InvalidJob(InvalidInput):
    """The request does not fit the tensor, the caller's limits or the memory a job may take.

    `problems` has all that is wrong; the attributes of InvalidInput are those of the first.
    """

    def __init__(self, problems: Sequence[InvalidInput | NotFound]) -> None:
        first = next(problem for problem in problems if isinstance(problem, InvalidInput))
        super().__init__(first.field, first.problem, first.remedy)
        self.problems = tuple(problems)
