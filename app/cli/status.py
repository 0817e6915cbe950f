"""`ncp status`: the state of the server on a data folder. Reads its Redis, so it needs no key."""

from datetime import UTC, datetime

from sparse_ncp.app.cli.owners import print_shares
from sparse_ncp.app.server.data_folder import read_address_file
from sparse_ncp.app.server.discovery import api_version, no_server, with_running_redis
from sparse_ncp.app.server.errors import NoServer
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.data_format import plan_of_upgrade
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.local import LocalStore

COLUMNS = "{:<20}  {:<12}  {:<9}  {:>9}  {:>10}  {:>14}  {:>10}"
TITLES = ("job", "owner", "method", "iteration", "objective", "relative error", "runs for")


def show_status(configuration: Configuration) -> None:
    """Print the state of the server on one screen, or raise NoServer."""
    address = read_address_file(configuration.data) or f"http://{configuration.host}:{configuration.port}"
    reachable = with_running_redis(configuration)
    try:
        store = LocalStore(reachable.data, create=False)
        records = Records.of(reachable)
        queue, running, shares = records.stats.queue(), records.stats.running_jobs(), records.owners.shares()
        stored, free = store.stored_bytes(), store.free_bytes()
    except Unavailable as error:
        if configuration.redis_url is None:
            raise no_server(configuration) from error
        raise NoServer(f"{error}; start it, or correct --redis-url or NCP_REDIS_URL") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise no_server(configuration) from error
    version = api_version(address)
    oldest = f", the oldest waits for {_span(queue.oldest_queued_seconds)}" if queue.queued else ""
    print(f"server   {f'sparse-ncp {version}' if version else 'no answer'} at {address}")
    print(f"queue    {queue.queued}{oldest}")
    print(f"workers  {queue.live_workers or 'none: start one with ncp worker'}")
    print(f"disk     {_size(free)} free; tensors {_size(stored['tensors'])}, jobs {_size(stored['jobs'])}")
    print(f"data     {plan_of_upgrade(reachable.data)}")
    print(f"running  {len(running)}")
    if running:
        print(COLUMNS.format(*TITLES))
    for job in running:
        began, done = job.started_at or job.created_at, job.progress
        numbers = (done.iteration, f"{done.objective:.4g}", f"{done.relative_error:.6f}") if done else (0, "-", "-")
        lasting = _span((datetime.now(UTC) - began).total_seconds())
        print(COLUMNS.format(job.id, job.owner[:12], job.settings.method, *numbers, lasting))
    live = [share for share in shares if share.running or share.queued or share.paused]
    if live:
        print_shares(live)


def _span(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
