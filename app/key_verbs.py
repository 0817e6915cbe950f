"""`ncp keys`: who may call the server. Needs the data folder alone, so it works beside a running server and before."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from worker.configuration import Configuration
from worker.errors import NotFound, Refused
from worker.key_files import Key, KeyFiles
from worker.limits import UNLIMITED, Limits

VERB = "keys"
SUMMARY = "create, list, limit and revoke the keys that callers need"
ACTS = {
    "create": "make a key and print it: it is shown this once",
    "list": "who has a key, since when, when it was last used, and its own limits",
    "limit": "give a key other limits, from the next request on",
    "revoke": "refuse a key from the next request on; what was made with it stays",
}
FAILED = 2


def add_to(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `keys` to the command."""
    acts = verbs.add_parser(VERB, help=SUMMARY, description=SUMMARY).add_subparsers(
        dest="act", required=True, metavar="|".join(ACTS)
    )
    for act, summary in ACTS.items():
        part = acts.add_parser(act, help=summary, description=summary)
        part.add_argument("--data", metavar="DATA", help="data folder of the server (NCP_DATA)")
        if act != "list":
            part.add_argument("name", metavar="NAME", help="of the key, and owner of what is made with it")
        if act == "create":
            part.add_argument("--admin", action="store_true", help="may see all owners and queues, and cancel any job")
        if act in ("create", "limit"):
            _add_limits(part)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    for name, field in Limits.model_fields.items():
        told = f"{field.description}; none for no limit, default for the server's (NCP_MAX_{name.upper()})"
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="N", help=told)


def run(chosen: Mapping[str, Any]) -> int:
    """A refusal is one clear line and exit code 2."""
    try:
        root = Configuration(**({"data": chosen["data"]} if chosen["data"] else {})).data
        _act_as_owner_of(root)
        _do(chosen, KeyFiles(root))
    except ValidationError as error:
        return _refuse("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()))
    except (Refused, NotFound) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"the data folder cannot be used: {error}; choose another with --data")
    return 0


def _do(chosen: Mapping[str, Any], keys: KeyFiles) -> None:
    match chosen["act"]:
        case "create":
            secret = keys.create(chosen["name"], chosen["admin"], _limits(chosen, UNLIMITED))
            print(secret)
            print("ncp: keep it now, it is not shown again", file=sys.stderr)
        case "list":
            print("\n".join(_table(keys.all())))
        case "limit":
            keys.limit(chosen["name"], _limits(chosen, keys.named(chosen["name"]).limits))
        case "revoke":
            keys.revoke(chosen["name"])
            if not keys.all():
                print("ncp: that was the last key: nobody can call this server now", file=sys.stderr)


def _limits(chosen: Mapping[str, Any], before: Limits) -> Limits:
    """Those from before, changed by the options that were given."""
    wanted: dict[str, Any] = dict(before.given)
    for name in Limits.model_fields:
        if chosen[name] == "default":
            wanted.pop(name, None)
        elif chosen[name] is not None:
            wanted[name] = None if chosen[name] == "none" else chosen[name]
    return Limits.model_validate(wanted)


def _table(keys: Sequence[Key]) -> list[str]:
    rows = [("NAME", "ADMIN", "CREATED", "LAST USED", "LIMITS")]
    for key in keys:
        limits = " ".join(f"{name}={'none' if value is None else value}" for name, value in key.limits.given.items())
        rows.append((key.name, "yes" if key.admin else "", _day(key.created_at), _day(key.last_used_at), limits))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _day(moment: datetime | None) -> str:
    return "never" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M")


def _act_as_owner_of(root: Path) -> None:
    """With sudo the files would be root's, and the server could not read them."""
    if os.geteuid() == 0 and root.is_dir():
        found = root.stat()
        os.setegid(found.st_gid)
        os.seteuid(found.st_uid)


def _refuse(reason: str) -> int:
    print(f"ncp: {reason}", file=sys.stderr)
    return FAILED
