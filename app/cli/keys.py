"""`ncp keys`: manage API keys. Only needs the data folder, so it works with and without a running server."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.app.cli.options import Data, configured, validated
from sparse_ncp.app.server.errors import StartupError
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits

app = typer.Typer(help="Create, list, limit and revoke the keys that callers need.")


def _limit(name: str) -> Any:
    text = f"{Limits.model_fields[name].description}; none for no limit, default for the server's"
    return typer.Option(f"--{name.replace('_', '-')}", metavar="N", help=f"{text} (NCP_MAX_{name.upper()})")


Name = Annotated[str, typer.Argument(metavar="NAME", help="of the key, and owner of what is made with it")]
Admin = Annotated[bool, typer.Option("--admin", help="may see all owners and queues, and cancel any job")]
TensorBytes = Annotated[str | None, _limit("tensor_bytes")]
StoredBytes = Annotated[str | None, _limit("stored_bytes")]
LabelBytes = Annotated[str | None, _limit("label_bytes")]
LiveJobs = Annotated[str | None, _limit("live_jobs")]
StudyRuns = Annotated[str | None, _limit("study_runs")]
LiveRuns = Annotated[str | None, _limit("live_runs")]
Rank = Annotated[str | None, _limit("rank")]
JobSeconds = Annotated[str | None, _limit("job_seconds")]
RequestsPerSecond = Annotated[str | None, _limit("requests_per_second")]


@app.command()
def create(
    name: Name,
    admin: Admin = False,
    tensor_bytes: TensorBytes = None,
    stored_bytes: StoredBytes = None,
    label_bytes: LabelBytes = None,
    live_jobs: LiveJobs = None,
    study_runs: StudyRuns = None,
    live_runs: LiveRuns = None,
    rank: Rank = None,
    job_seconds: JobSeconds = None,
    requests_per_second: RequestsPerSecond = None,
    data: Data = None,
) -> None:
    """Create a key and print it. It is not shown again."""
    limits = _changed(
        UNLIMITED,
        tensor_bytes=tensor_bytes,
        stored_bytes=stored_bytes,
        label_bytes=label_bytes,
        live_jobs=live_jobs,
        study_runs=study_runs,
        live_runs=live_runs,
        rank=rank,
        job_seconds=job_seconds,
        requests_per_second=requests_per_second,
    )
    with _keys_in(data) as keys:
        print(keys.create(name, admin, limits))
    print("ncp: keep it now, it is not shown again", file=sys.stderr)


@app.command("list")
def list_keys(data: Data = None) -> None:
    """List keys, with their last use and their own limits."""
    with _keys_in(data) as keys:
        rows = [("NAME", "ADMIN", "CREATED", "LAST USED", "LIMITS")]
        for key in keys.all():
            limits = " ".join(
                f"{name}={'none' if value is None else value}" for name, value in key.limits.given.items()
            )
            made, used = _minute(key.created_at), _minute(key.last_used_at)
            rows.append((key.name, "yes" if key.admin else "", made, used, limits))
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        for damage in keys.damaged():
            print(f"ncp: {damage}", file=sys.stderr)


@app.command()
def limit(
    name: Name,
    tensor_bytes: TensorBytes = None,
    stored_bytes: StoredBytes = None,
    label_bytes: LabelBytes = None,
    live_jobs: LiveJobs = None,
    study_runs: StudyRuns = None,
    live_runs: LiveRuns = None,
    rank: Rank = None,
    job_seconds: JobSeconds = None,
    requests_per_second: RequestsPerSecond = None,
    data: Data = None,
) -> None:
    """Change the limits of a key, from the next request on."""
    with _keys_in(data) as keys:
        limits = _changed(
            keys.named(name).limits,
            tensor_bytes=tensor_bytes,
            stored_bytes=stored_bytes,
            label_bytes=label_bytes,
            live_jobs=live_jobs,
            study_runs=study_runs,
            live_runs=live_runs,
            rank=rank,
            job_seconds=job_seconds,
            requests_per_second=requests_per_second,
        )
        keys.limit(name, limits)


@app.command()
def revoke(name: Name, data: Data = None) -> None:
    """Refuse a key from the next request on. What was made with it stays."""
    with _keys_in(data) as keys:
        keys.revoke(name)
        if not keys.all():
            print("ncp: that was the last key: no one can call this server now", file=sys.stderr)


@contextmanager
def _keys_in(data: str | None) -> Iterator[ApiKeys]:
    root = configured(data=data).data
    try:
        if os.geteuid() == 0 and root.is_dir():  # with sudo: files of root could not be read by the server
            found = root.stat()
            os.setegid(found.st_gid)
            os.seteuid(found.st_uid)
        yield ApiKeys(root)
    except OSError as error:
        raise StartupError(f"the data folder cannot be used: {error}; choose another with --data") from error


def _changed(limits: Limits, **options: str | None) -> Limits:
    """Return the limits with the changes given as options."""
    values: dict[str, Any] = dict(limits.given)
    for name, value in options.items():
        if value == "default":
            values.pop(name, None)
        elif value is not None:
            values[name] = None if value == "none" else value
    return validated(Limits, values)


def _minute(moment: datetime | None) -> str:
    return "never" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M")
