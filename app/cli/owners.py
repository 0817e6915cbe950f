"""`ncp owners`: shares of the computing time, weights and pauses. Reads Redis of a running server; needs no key."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sparse_ncp.app.cli.options import Data, RedisUrl, configured
from sparse_ncp.app.server.discovery import no_server, with_running_redis
from sparse_ncp.app.server.errors import NoServer
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.owner_limits import OwnerShare

if TYPE_CHECKING:
    from sparse_ncp.worker.records.owners import OwnerRecords

app = typer.Typer(help="Show the shares of owners, and weigh or pause them.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the owner, as of its key")]
Weight = Annotated[float, typer.Argument(min=0.01, max=100, help="share relative to an owner with weight 1")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="reason that the owner sees on each waiting job")]
COLUMNS = "{:<20}  {:>7}  {:>6}  {:>6}  {:>5}  {:>9}  {}"


@app.command("list")
def list_owners(data: Data = None, redis_url: RedisUrl = None) -> None:
    """List owners in the order in which they are served next."""
    with _owners(data, redis_url) as owners:
        print_shares(owners.shares())


def print_shares(shares: list[OwnerShare]) -> None:
    """Print one line per owner: workers in use, queued jobs, weight, share of the recent time, account."""
    print(COLUMNS.format("OWNER", "RUNNING", "QUEUED", "WEIGHT", "SHARE", "ACCOUNT", "").rstrip())
    for one in shares:
        numbers = (one.running, one.queued, f"{one.weight:g}", f"{one.share:.0%}", f"{one.account_seconds:.0f} s")
        print(COLUMNS.format(one.owner[:20], *numbers, one.paused.message if one.paused else "").rstrip())


@app.command("weight")
def set_weight(name: Name, weight: Weight, data: Data = None, redis_url: RedisUrl = None) -> None:
    """Set the weight of an owner, its share of the computing time relative to other owners. The default is 1."""
    with _owners(data, redis_url) as owners:
        owners.set_weight(name, weight)


@app.command()
def pause(name: Name, reason: Reason = "", data: Data = None, redis_url: RedisUrl = None) -> None:
    """Pause an owner: start no more of its jobs, and return running ones to the queue after their sweep."""
    if len(reason) > 200:
        raise typer.BadParameter("is longer than 200 characters; shorten it", param_hint="--reason")
    with _owners(data, redis_url) as owners:
        owners.pause(name, reason)


@app.command()
def resume(name: Name, data: Data = None, redis_url: RedisUrl = None) -> None:
    """Let the jobs of an owner run again."""
    with _owners(data, redis_url) as owners:
        owners.resume(name)


@contextmanager
def _owners(data: str | None, redis_url: str | None) -> Iterator["OwnerRecords"]:
    from sparse_ncp.worker.records.records import Records  # takes 0.3 s to load, which other commands need not wait for

    configuration = configured(data=data, redis_url=redis_url)
    records = Records.of(with_running_redis(configuration))
    try:
        yield records.owners
    except Unavailable as error:
        if configuration.redis_url is None:
            raise no_server(configuration) from error
        raise NoServer(f"{error}; start it, or correct --redis-url or NCP_REDIS_URL") from error
    finally:
        records.close()
