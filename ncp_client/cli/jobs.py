"""Commands about jobs: submit, watch, jobs, show, cancel, delete, download, plot, methods."""

import json
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from ncp_client.cli.exit_codes import ExitCode
from ncp_client.cli.options import JobId, Json, Key, Url, with_options
from ncp_client.cli.output import (
    print_comparison,
    print_diagnostics,
    print_jobs,
    print_json,
    print_record,
    print_result,
    print_table,
)
from ncp_client.client import Client
from ncp_client.fields import JobFields
from ncp_client.http.errors import JobFailed, NotFound
from ncp_client.job import Job, file_format
from ncp_client.study import Study
from ncp_client.tensor import Tensor

ENDINGS = {None: "npz", "csv": "zip"}
Beside = Annotated[str | None, typer.Option("--beside", metavar="JOB", help="compare the job with this one")]
Id = Annotated[str, typer.Argument(metavar="ID", help="id of a job, a study or a tensor")]
Ids = Annotated[list[str], typer.Argument(metavar="ID…", help="ids of jobs, studies or tensors")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="write the factors to this file when the job has ended")
]
Rank = Annotated[int, typer.Option("--rank", help="number of components allowed")]
Source = Annotated[
    str, typer.Argument(metavar="TENSOR", help="a .npy file, - for standard input, or the id of a tensor")
]
Watch = Annotated[bool, typer.Option("--watch", help="show progress until the job ends")]
State = Annotated[str | None, typer.Option(help="only jobs in this state")]
Method = Annotated[str | None, typer.Option(help="only jobs of this method")]
OnTensor = Annotated[str | None, typer.Option("--tensor", help="only jobs on the tensor with this id")]
Limit = Annotated[int, typer.Option(min=0, help="number of entries, the newest first; 0 for all")]


@with_options(JobFields)
def submit(
    source: Source,
    rank: Rank,
    watch: Watch = False,
    output: Output = None,
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
    fields: Any = None,
) -> None:
    """Queue the decomposition of a tensor. It is uploaded if the server does not have it."""
    if output:  # fail now rather than after hours of computing
        file_format(output)
        if not output.absolute().parent.is_dir():
            raise typer.BadParameter(f"there is no folder {output.parent} to write {output.name} to")
    with Client(url, key) as client:
        job = client.submit(tensor_of(client, source, fields.get("name")), rank, **fields)
        if not (watch or output):
            print_json(job.record) if as_json else print(job.id)
            return
        _follow(job, as_json and watch, quiet=not watch)
        if output and job.record["result"]:
            job.download(output)
        _print_outcome(job, as_json)


def tensor_of(client: Client, source: str, name: str | None) -> Tensor:
    """Return the tensor with an id, or upload a file unless the server already has it."""
    from ncp_client.progress import upload_bar

    path = Path(source)
    if source != "-" and not path.exists() and "." not in path.name and path.name == source:
        return client.tensor(source)
    with upload_bar() as advance:
        if source == "-":
            return client.upload(sys.stdin.buffer, name, on_progress=advance)
        return client.upload(path, name or path.name, on_progress=advance)


def watch(job_id: JobId, as_json: Json = False, url: Url = None, key: Key = None) -> None:
    """Show the progress of a job, from its first iteration. Ctrl-C leaves it running."""
    with Client(url, key) as client:
        job = client.job(job_id)
        _follow(job, as_json)
        _print_outcome(job, as_json)


def _follow(job: Job, as_json: bool, quiet: bool = False) -> None:
    try:
        if as_json:
            for row in job.watch():
                print(json.dumps(row._asdict()), flush=True)
        elif quiet:
            job.wait()
        else:
            from ncp_client.progress import watch_live

            watch_live(job)
    except KeyboardInterrupt:
        print(
            f"ncp: job {job.id} continues on the server; ncp watch {job.id} shows it, ncp cancel {job.id} stops it",
            file=sys.stderr,
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _print_outcome(job: Job, as_json: bool) -> None:
    if as_json:
        print_json(job.record)
    else:
        print_result(job)
    if job.state != "succeeded":
        raise JobFailed(job.record)


def list_jobs(
    state: State = None,
    method: Method = None,
    tensor: OnTensor = None,
    limit: Limit = 50,
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """List your jobs, newest first."""
    with Client(url, key) as client:
        jobs = list(islice(client.jobs(state, method, tensor), limit or None))
    print_json([job.record for job in jobs]) if as_json else print_jobs(jobs)


def show(identifier: Id, other: Beside = None, as_json: Json = False, url: Url = None, key: Key = None) -> None:
    """Show a job, a study or a tensor. A job that has succeeded has a summary of its diagnostics, too."""
    with Client(url, key) as client:
        if other is not None:
            compared = client.job(identifier).compare(other)
            return print_json(compared) if as_json else print_comparison(compared)
        found = _find_record(client, identifier)
        diagnostics = None
        if isinstance(found, Job) and found.state == "succeeded" and not as_json:
            with suppress(NotFound):  # it ran without diagnose
                diagnostics = found.diagnostics()
    print_json(found.record) if as_json else print_record(found.record)
    if diagnostics is not None:
        print_diagnostics(diagnostics)
    return None


def _find_record(client: Client, identifier: str) -> Job | Study | Tensor:
    for find in (client.job, client.get_study, client.tensor):
        try:
            return find(identifier)
        except NotFound:
            continue
    detail = f"there is no job, study or tensor {identifier}"
    raise NotFound({"status": 404, "detail": detail, "remedy": "see ncp jobs, ncp studies and ncp tensors"})


def cancel(job_id: JobId, as_json: Json = False, url: Url = None, key: Key = None) -> None:
    """Stop a job or a study. What was computed is kept."""
    with Client(url, key) as client:
        found = _find_record(client, job_id)
        if isinstance(found, Tensor):
            raise NotFound({"status": 404, "detail": f"there is no job or study {job_id}", "remedy": "see ncp jobs"})
        record = found.cancel().record
    if as_json:
        print_json(record)


def delete(ids: Ids, as_json: Json = False, url: Url = None, key: Key = None) -> None:
    """Delete jobs and studies that have ended, or unused tensors."""
    with Client(url, key) as client:
        for identifier in ids:
            _find_record(client, identifier).delete()
    if as_json:
        print_json({"deleted": ids})


def download(
    job_id: JobId,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="file to write; by default JOB.npz")] = None,
    format: Annotated[str | None, typer.Option(help="npz, mat, csv or nc; by default the file's extension")] = None,
    mode: Annotated[int | None, typer.Option(help="only the factor of this mode, counted from 1")] = None,
    scale: Annotated[str | None, typer.Option(help="how columns are scaled: none, unit or max")] = None,
    order: Annotated[str | None, typer.Option(help="order of components: none, or share for the largest first")] = None,
    zeros: Annotated[str | None, typer.Option(help="keep or drop components that vanished")] = None,
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Download the factors of a job. While it is running, they are those of its last checkpoint."""
    with Client(url, key) as client:
        job = client.job(job_id)
        target = output or Path(
            f"{job.id}-A{mode}.{format or 'npy'}" if mode else f"{job.id}.{ENDINGS.get(format, format)}"
        )
        job.download(target, format, mode, scale, order, zeros)
    print_json({"path": str(target)}) if as_json else print(target)


def plot(
    job_id: JobId,
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write; its extension decides the format")],
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Plot the components of a job that has ended."""
    with Client(url, key) as client:
        client.job(job_id).result.plot(output)
    print_json({"path": str(output)}) if as_json else print(output)


def methods(as_json: Json = False, url: Url = None, key: Key = None) -> None:
    """List the methods of the server."""
    with Client(url, key) as client:
        found = client.methods()
    if as_json:
        print_json(found)
    else:
        rows = [
            (one["name"], "yes" if one["monotone"] else "no", "yes" if one["exact"] else "no", one["title"])
            for one in found
        ]
        print_table(("METHOD", "NEVER RISES", "EXACT BLOCKS", "TITLE"), rows)
