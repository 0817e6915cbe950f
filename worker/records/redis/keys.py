"""Names of the keys in Redis. `lua/keys.lua` repeats them for the scripts; a test compares the two."""

PREFIX = "ncp:"
SEQUENCE = PREFIX + "sequence"
# When each owner was last served, and the counter for that.
SERVED = PREFIX + "served"
SERVING = PREFIX + "serving"
LEASES = PREFIX + "leases"
WAITING = PREFIX + "waiting"
UNSETTLED = PREFIX + "unsettled"
WORKERS = PREFIX + "workers"
QUEUED = PREFIX + "queued"
# By owner: queued runs that have no record yet.
PLANNED = PREFIX + "planned"
COUNTS = PREFIX + "counts"
OWNERS = PREFIX + "owners"
# Owners with queued or running jobs, and the lowest account among them.
ACTIVE = PREFIX + "active"
FLOOR = PREFIX + "floor"
# How many jobs each worker runs at once.
SLOTS = PREFIX + "slots"
# Processes that should give way to others, and why.
YIELDING = PREFIX + "yielding"
# Deleted jobs and contents, by time, until their files are certainly gone.
DISCARDED = PREFIX + "discarded"
# What each running upload has reserved.
UPLOADS = PREFIX + "uploads"
# Recent progress of preparations: a short stream for clients that are connected.
PREPARING = PREFIX + "preparing"
# Comparisons whose runs have ended and whose recommendation is being made.
ENDING = PREFIX + "ending"
# Contents of new tensors in which zeros that look missing are still to be looked for.
UNINSPECTED = PREFIX + "uninspected"
# Which worker has the turn to clean up; the name is older than the word.
CLEANUP_TURN = PREFIX + "tidied"
# The end of a study's id. In the ids of its runs, six hexadecimal digits stand in its place.
ID_OF_STUDY = "000000"
# The format of all of this, and the release that wrote it first.
FORMAT = PREFIX + "format"
# What Celery keeps in the same Redis.
BROKER = PREFIX + "broker:"


def tensor(id: str) -> str:
    return f"{PREFIX}tensor:{id}"


def tensors(owner: str) -> str:
    return f"{PREFIX}tensors:{owner}"


def content(sha256: str) -> str:
    return f"{PREFIX}content:{sha256}"


def job(id: str) -> str:
    return f"{PREFIX}job:{id}"


def jobs(owner: str) -> str:
    return f"{PREFIX}jobs:{owner}"


def study(id: str) -> str:
    return f"{PREFIX}study:{id}"


def planned_study(run_id: str) -> str:
    """The study whose plan has this run, whose id ends in a place from 1; the study's own ends in zeros."""
    return study(f"{run_id[:14]}{ID_OF_STUDY}")


def studies(owner: str) -> str:
    return f"{PREFIX}studies:{owner}"


def live_studies(owner: str) -> str:
    return f"{PREFIX}live:{owner}"


def runs(study_id: str) -> str:
    """Runs of a study that have a record, in the order in which they got it."""
    return f"{PREFIX}runs:{study_id}"


def plan(study_id: str) -> str:
    """Common parts of the runs of a study: an entry per cell, the seeds, and the validation."""
    return f"{PREFIX}plan:{study_id}"


def rows(study_id: str) -> str:
    """Results of the ended runs of a comparison, by their place in its plan."""
    return f"{PREFIX}rows:{study_id}"


def plans(owner: str) -> str:
    """Studies of an owner with runs that have no record, by the sequence number of their first run."""
    return f"{PREFIX}plans:{owner}"


def batch(token: str) -> str:
    """Runs that one process has claimed together and not ended yet."""
    return f"{PREFIX}batch:{token}"


def stream(id: str) -> str:
    """The events of a job or of a study."""
    return f"{PREFIX}events:{id}"


def queue(owner: str) -> str:
    return f"{PREFIX}queue:{owner}"


def dependents(id: str) -> str:
    """Live jobs that need this tensor or job."""
    return f"{PREFIX}users:{id}"


def idempotency(owner: str, digest: str) -> str:
    return f"{PREFIX}key:{owner}:{digest}"


def axes(digest: str) -> str:
    """Labels, stored under their digest."""
    return f"{PREFIX}axes:{digest}"


def labelled(digest: str) -> str:
    """The records of tensors and jobs that have these labels."""
    return f"{PREFIX}labelled:{digest}"


def labels(owner: str) -> str:
    """Number of an owner's records that have each labels, by digest."""
    return f"{PREFIX}labels:{owner}"


def names(kind: str, owner: str) -> str:
    """Names of an owner's jobs or tensors by id, in the form used for searching."""
    return f"{PREFIX}names:{kind}:{owner}"


def running(owner: str) -> str:
    return f"{PREFIX}running:{owner}"


def busy(owner: str) -> str:
    """Processes of an owner that use a worker, each a job or a batch, by the time at which they began."""
    return f"{PREFIX}busy:{owner}"


def share(owner: str) -> str:
    """The account of an owner, and what the operator has set: a weight, and why no job of the owner runs."""
    return f"{PREFIX}share:{owner}"


def usage(owner: str) -> str:
    return f"{PREFIX}usage:{owner}"


def request_tokens(owner: str) -> str:
    return f"{PREFIX}rate:{owner}"
