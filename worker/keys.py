"""Names of the Redis keys. The scripts in `lua/` build the same names, see `lua/prelude.lua`."""

PREFIX = "ncp:"
SEQUENCE = PREFIX + "sequence"
LEASES = PREFIX + "leases"
WAITING = PREFIX + "waiting"
UNSETTLED = PREFIX + "unsettled"
WORKERS = PREFIX + "workers"
QUEUED = PREFIX + "queued"
COUNTS = PREFIX + "counts"
OWNERS = PREFIX + "owners"
# Jobs and contents whose record was deleted, by time, until their files are gone for certain.
DISCARDED = PREFIX + "discarded"
TIDIED = PREFIX + "tidied"
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


def stream(id: str) -> str:
    return f"{PREFIX}events:{id}"


def queue(owner: str) -> str:
    return f"{PREFIX}queue:{owner}"


def users(id: str) -> str:
    """The live jobs that need this tensor or job."""
    return f"{PREFIX}users:{id}"


def idempotency(owner: str, digest: str) -> str:
    return f"{PREFIX}key:{owner}:{digest}"


def running(owner: str) -> str:
    return f"{PREFIX}running:{owner}"


def usage(owner: str) -> str:
    return f"{PREFIX}usage:{owner}"
