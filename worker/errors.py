"""What the engine refuses or cannot do. The HTTP room maps each of these to an answer in one table."""


class NotFound(LookupError):
    """No such tensor or job, or not the caller's own: the two look the same from outside."""

    def __init__(self, kind: str, id: str, field: str | None = None) -> None:
        super().__init__(f"there is no {kind} {id}")
        self.kind = kind
        self.id = id
        self.field = field or (f"{kind}_id" if kind in ("tensor", "job") else kind)


class InUse(Exception):
    """A live job still needs it."""

    def __init__(self, kind: str, id: str) -> None:
        super().__init__(f"{kind} {id} is needed by a job that is queued or running")
        self.kind = kind
        self.id = id


class StillLive(Exception):
    """A job that is queued or running cannot be deleted."""

    def __init__(self, id: str) -> None:
        super().__init__(f"job {id} is queued or running")
        self.id = id


class KeyReused(Exception):
    """The idempotency key was used before, with another body."""


class TooManyJobs(Exception):
    """The owner has as many live jobs as they may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"you may have {limit} jobs queued or running at the same time, and have them")


class QuotaReached(Exception):
    """The owner stores as much as they may."""

    def __init__(self, limit: int, stored: int, more: int = 0) -> None:
        wish = f"; this tensor has {more}" if more else ""
        super().__init__(f"you store {stored} of the {limit} bytes you may store{wish}")


class NotYet(Exception):
    """The job has no factors yet: it has not reached its first checkpoint, or ended before it."""

    def __init__(self, id: str) -> None:
        super().__init__(f"job {id} has no factors yet")
        self.id = id


class StoreFull(OSError):
    """The disk has no room left."""


class Damaged(Exception):
    """Stored bytes do not have their digest any more."""


class Unavailable(ConnectionError):
    """Redis is away, or cannot take the write."""


class Refused(ValueError):
    """Names the field, what is wrong with it, and the remedy."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class BadTensor(Refused):
    """The uploaded file is no tensor that can be decomposed."""


class DoesNotFit(Refused):
    """The request does not fit the tensor, or the memory a job may take."""
