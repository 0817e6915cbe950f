"""The `ncp` command: `ncp serve` runs everything on this machine, `ncp api` and `ncp worker` one part of it, `ncp keys`
says who may call it, `ncp status` how it is, `ncp gc` tidies up."""

import argparse
import os
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from app import key_verbs
from app.claims import Taken, look_up
from app.hosts import is_loopback
from worker.configuration import Configuration
from worker.key_files import KeyFiles

VERBS = {
    "serve": "start Redis, the worker and the API on this machine, and stop them together",
    "api": "start the HTTP part alone; needs NCP_REDIS_URL",
    "worker": "start a worker alone; needs NCP_REDIS_URL and the same files as the API",
    "status": "tell queue, running jobs, workers and disk of the server on a data folder",
    "gc": "remove jobs and tensors whose time has come, and what dead attempts left; beside a server or without one",
}
OPTIONS = {
    "serve": ("host", "port", "data", "redis_url", "workers", "log_level", "log_format"),
    "api": ("host", "port", "data", "redis_url", "log_level", "log_format"),
    "worker": ("data", "redis_url", "workers", "log_level", "log_format"),
    "status": ("data", "redis_url", "host", "port"),
    "gc": ("data", "redis_url", "keep_jobs_days", "keep_tensors_days"),
}
REFUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Options win over NCP_ variables; a wrong one is one clear line and exit code 2."""
    chosen = vars(_parser().parse_args(arguments))
    os.umask(0o077)  # what this process and its children write, Redis among them, is for this account alone
    if chosen["verb"] == key_verbs.VERB:
        return key_verbs.run(chosen)
    verb, fd, dry_run = chosen.pop("verb"), chosen.pop("fd", None), chosen.pop("dry_run", False)
    given = {name: value for name, value in chosen.items() if value is not None}
    try:
        configuration = Configuration(**given)
    except ValidationError as error:
        return _refuse("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()))
    if verb == "gc":
        from app.collect import collect

        return collect(configuration, dry_run)
    return _start(verb, configuration, fd)


def _start(verb: str, configuration: Configuration, fd: int | None) -> int:
    """Each part is imported only when it is asked for: a worker loads no web server."""
    if verb == "status":
        from app.status import status

        return status(configuration)
    lack = None if verb == "worker" or fd is not None else _lack_of_address(configuration)
    if lack is None and verb != "serve" and configuration.redis_url is None:
        lack = f"ncp {verb} needs a Redis: set NCP_REDIS_URL, or use ncp serve"
    return _begin(verb, configuration, fd) if lack is None else _refuse(lack)


def _lack_of_address(configuration: Configuration) -> str | None:
    """Why the API cannot listen there, if so: only on an address that nobody else reaches it needs no key."""
    try:
        look_up(configuration.host, configuration.port)
    except Taken as refusal:
        return str(refusal)
    if is_loopback(configuration.host) or KeyFiles(configuration.data).all():
        return None
    return (
        f"{configuration.host} can be reached from other machines, and nobody has a key yet; "
        f"make one with ncp keys create NAME --data {configuration.data}, or listen on 127.0.0.1"
    )


def _begin(verb: str, configuration: Configuration, fd: int | None) -> int:
    if verb == "serve":
        from app.serve import serve

        return serve(configuration)
    if verb == "worker":
        from worker.queue import run_worker

        return run_worker(configuration)
    from app.server import run_api

    return run_api(configuration, fd)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("ncp", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join([*VERBS, key_verbs.VERB]))
    for verb, summary in VERBS.items():
        part = verbs.add_parser(verb, help=summary, description=summary)
        for name in OPTIONS[verb]:
            _add_option(part, name)
        if verb == "api":
            part.add_argument("--fd", type=int, help=argparse.SUPPRESS)  # the launcher's socket, already listening
        if verb == "gc":
            part.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    key_verbs.add_to(verbs)
    return parser


def _add_option(parser: argparse.ArgumentParser, name: str) -> None:
    """An option is a field of the configuration: one description, one place of validation."""
    field = Configuration.model_fields[name]
    flag, told = "--" + name.replace("_", "-"), f"{field.description} (NCP_{name.upper()}, {field.default})"
    parser.add_argument(flag, metavar=name.upper(), help=told.replace("%", "%%"))


def _refuse(reason: str) -> int:
    print(f"ncp: {reason}", file=sys.stderr)
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
