"""The server's commands of `ncp`, which the entry points in pyproject.toml join to those of the client.

Each imports only what it needs: a worker loads no web server, a launcher no numpy.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ncp_client.cli.exit_codes import ExitCode
from sparse_ncp.app.cli import keys, owners
from sparse_ncp.app.cli.options import (
    Data,
    Host,
    KeepJobsDays,
    KeepTensorsDays,
    LogFormat,
    LogLevel,
    Port,
    RedisUrl,
    Workers,
    configured,
)
from sparse_ncp.app.server.bind import check_address
from sparse_ncp.app.server.errors import NoServer, NotReady, StartupError
from sparse_ncp.solvers import InvalidInput
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.data_format import mark_folder, mark_redis
from sparse_ncp.worker.errors import LaterFormat, NotFound, OldRedis, Unavailable
from sparse_ncp.worker.processes import no_garbage_collection

Fd = Annotated[int | None, typer.Option(hidden=True, help="the launcher's socket, already listening")]
StartFd = Annotated[int | None, typer.Option(hidden=True, help="the launcher's signal that Redis is ready")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="only say what would be removed")]
app = typer.Typer(
    help="Run and look after a sparse-ncp server: all of it with ncp serve, one part with ncp api or ncp worker.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # plain text; and rich takes longer to load than all the rest
    pretty_exceptions_enable=False,
)
app.add_typer(keys.app, name="keys")
app.add_typer(owners.app, name="owners")


@app.command()
def serve(
    host: Host = None,
    port: Port = None,
    data: Data = None,
    redis_url: RedisUrl = None,
    workers: Workers = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Start the server on this machine: Redis, a worker and the API."""
    configuration = configured(
        host=host,
        port=port,
        data=data,
        redis_url=redis_url,
        workers=workers,
        log_level=log_level,
        log_format=log_format,
    )
    check_address(configuration)
    from sparse_ncp.app.server.launcher import serve

    serve(configuration)


@app.command()
def api(
    host: Host = None,
    port: Port = None,
    data: Data = None,
    redis_url: RedisUrl = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    fd: Fd = None,
    start_fd: StartFd = None,
) -> None:
    """Start the HTTP API alone; needs NCP_REDIS_URL."""
    configuration = configured(
        host=host, port=port, data=data, redis_url=redis_url, log_level=log_level, log_format=log_format
    )
    _check_redis("api", configuration)
    with no_garbage_collection():
        from sparse_ncp.app.server.data_folder import check_records
        from sparse_ncp.app.server.http.api import run_api

    if fd is None:
        check_address(configuration)
        check_records(configuration)
        mark_folder(configuration.data)
        mark_redis(configuration)

    run_api(configuration, fd, start_fd)


@app.command()
def worker(
    data: Data = None,
    redis_url: RedisUrl = None,
    workers: Workers = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    start_fd: StartFd = None,
) -> None:
    """Start a worker alone; needs NCP_REDIS_URL. It works on the same data folder as the API."""
    configuration = configured(
        data=data, redis_url=redis_url, workers=workers, log_level=log_level, log_format=log_format
    )
    _check_redis("worker", configuration)
    with no_garbage_collection():
        from sparse_ncp.worker.execution.celery_worker import run_worker

    if start_fd is None:
        mark_folder(configuration.data)
        mark_redis(configuration)
    run_worker(configuration, start_fd)


@app.command()
def status(data: Data = None, redis_url: RedisUrl = None, host: Host = None, port: Port = None) -> None:
    """Show queue, running jobs, workers and disk. The server is found by its data folder."""
    configuration = configured(data=data, redis_url=redis_url, host=host, port=port)
    from sparse_ncp.app.cli.status import show_status

    show_status(configuration)


@app.command()
def gc(
    data: Data = None,
    redis_url: RedisUrl = None,
    keep_jobs_days: KeepJobsDays = None,
    keep_tensors_days: KeepTensorsDays = None,
    dry_run: DryRun = False,
) -> None:
    """Remove old jobs, tensors and files. Works with and without a running server."""
    configuration = configured(
        data=data, redis_url=redis_url, keep_jobs_days=keep_jobs_days, keep_tensors_days=keep_tensors_days
    )
    from sparse_ncp.app.cli.gc import collect_garbage

    collect_garbage(configuration, dry_run)


@app.command()
def repair(data: Data = None) -> None:
    """Repair the log of the embedded Redis after a power cut. Stop the server first; a copy of the log is kept."""
    configuration = configured(data=data)
    from sparse_ncp.app.cli.repair import repair_records

    repair_records(configuration)


def _check_redis(command: str, configuration: Configuration) -> None:
    if configuration.redis_url is None:
        raise StartupError(f"ncp {command} needs a Redis: set NCP_REDIS_URL, or use ncp serve")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A refusal is one line on standard error."""
    os.umask(0o077)  # what this process and its children write, Redis among them, is for this account alone
    try:
        return app(arguments, prog_name="ncp", standalone_mode=False) or 0
    except typer.TyperException as error:
        command = getattr(error, "ctx", None)  # a wrong option knows whose it was
        hint = f" (see {command.command_path} --help)" if command else ""
        return _refuse(error.format_message() + hint, error.exit_code)
    except (NotReady, NoServer) as error:
        return _refuse(error, ExitCode.FAILED)
    except (StartupError, InvalidInput, NotFound, Unavailable, LaterFormat, OldRedis) as error:
        return _refuse(error, ExitCode.REFUSED)


def _refuse(reason: object, exit_code: int) -> int:
    print(f"ncp: {reason}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
