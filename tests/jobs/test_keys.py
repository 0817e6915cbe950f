"""The scripts and the Python code mean the same keys."""

import re
from inspect import getmembers, isfunction, signature

from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.records.redis import keys
from tests.support.stack import ROOT

LUA = ROOT / "worker" / "records" / "lua"
SCRIPTS = {path: path.read_text() for path in LUA.rglob("*.lua")}
PRELUDE = SCRIPTS[LUA / "keys.lua"]
# Not touched by a script: whose turn it is to clean up, the format; and what is no key: the prefixes, the end of an id.
PYTHON_ONLY = {"CLEANUP_TURN", "FORMAT", "PREFIX", "BROKER", "ID_OF_STUDY"}


def names_in_lua() -> dict[str, str]:
    """Constants and their values, from lines such as `local QUEUED, COUNTS = 'ncp:queued', 'ncp:counts'`."""
    found: dict[str, str] = {}
    for names, values in re.findall(r"^local ([A-Z, ]+) = ('ncp:.*?)(?: --.*)?$", PRELUDE, re.MULTILINE):
        found |= dict(zip(names.split(", "), re.findall(r"'(.*?)'", values), strict=True))
    return found


def names_in_python() -> dict[str, str]:
    return {
        name: value
        for name, value in vars(keys).items()
        if name.isupper() and isinstance(value, str) and name not in PYTHON_ONLY
    }


def kinds_in_python() -> set[str]:
    """The part between the prefix and the id."""
    return {
        function(*["x"] * len(signature(function).parameters)).split(":")[1]
        for _, function in getmembers(keys, isfunction)
    }


def test_the_scripts_and_the_code_name_the_same_keys() -> None:
    assert names_in_lua() == names_in_python()


def test_the_scripts_and_the_code_have_the_same_kinds_of_keys() -> None:
    kinds = {kind for text in SCRIPTS.values() for kind in re.findall(r"\bkey\('(\w+)'", text)}
    # The scripts are given the whole name of an idempotency key.
    assert kinds | {"key"} == kinds_in_python()


def test_only_the_list_of_keys_spells_a_key_out() -> None:
    assert [path.name for path, text in SCRIPTS.items() if "ncp:" in text] == ["keys.lua"]


def test_what_the_api_holds_cannot_claim_renew_publish_finish_or_reap(records: Records) -> None:
    """No attribute that the API is given has a script of claims behind it."""
    api = Records.of(records._redis.configuration)
    parts = {name: part for name, part in vars(api).items() if not name.startswith("_")}
    assert parts.keys() == {"tensors", "jobs", "studies", "events", "stats", "workers", "expired", "uploads", "owners"}
    methods = {name for part in parts.values() for name in dir(part) if not name.startswith("_")}
    assert not methods & {"claim", "renew", "publish", "succeed", "fail", "cancelled", "hand_back", "crashed", "reap"}
    assert not methods & {"checkpointed", "heartbeat", "clear"}
