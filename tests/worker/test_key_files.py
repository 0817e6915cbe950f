"""Keys are files: shown once, stored as a digest, known and forgotten at once."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from worker.errors import NotFound, Refused
from worker.key_files import KeyFiles
from worker.limits import Limits


def test_a_key_has_32_random_bytes_behind_a_prefix_and_is_stored_as_its_digest(tmp_path: Path) -> None:
    first, second = (KeyFiles(tmp_path).create(name) for name in ("ann", "bob"))
    assert first != second
    assert first.startswith("ncp_")
    assert len(first.removeprefix("ncp_")) == 43  # base64 of 32 bytes
    files = list((tmp_path / "keys").iterdir())
    assert {path.stem for path in files} == {sha256(key.encode()).hexdigest() for key in (first, second)}
    assert not any(first.removeprefix("ncp_") in path.read_text() for path in files)


def test_only_the_servers_account_reads_them(tmp_path: Path) -> None:
    KeyFiles(tmp_path).create("ann")
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()] == [0o600]


def test_another_process_knows_a_new_key_and_forgets_a_revoked_one_at_once(tmp_path: Path) -> None:
    ours, theirs = KeyFiles(tmp_path), KeyFiles(tmp_path)
    assert not theirs.ever_made
    secret = ours.create("ann", admin=True)
    found = theirs.find(secret)
    assert found is not None
    assert (found.name, found.admin) == ("ann", True)
    assert theirs.find(secret + "x") is None
    ours.revoke("ann")
    assert theirs.find(secret) is None
    assert theirs.all() == []
    assert theirs.ever_made


def test_a_name_has_one_key(tmp_path: Path) -> None:
    keys = KeyFiles(tmp_path)
    keys.create("ann")
    with pytest.raises(Refused, match="revoke it first"):
        keys.create("ann")

    def attempt(_: int) -> bool:
        try:
            return bool(keys.create("bob"))
        except Refused:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1
    assert [key.name for key in keys.all()] == ["ann", "bob"]


@pytest.mark.parametrize("name", ["", "Ann", "a b", "../x", "a/b", "-a", "é", "a\n", "x" * 65])
def test_a_name_is_short_and_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="name"):
        KeyFiles(tmp_path).create(name)
    assert KeyFiles(tmp_path).all() == []


def test_the_last_use_is_noted_at_most_once_a_minute(tmp_path: Path) -> None:
    keys = KeyFiles(tmp_path)
    secret = keys.create("ann")
    assert keys.named("ann").last_used_at is None
    keys.find(secret)
    first = keys.named("ann").last_used_at
    assert first is not None
    assert datetime.now(UTC) - first < timedelta(seconds=30)
    keys.find(secret)
    assert keys.named("ann").last_used_at == first
    path = next((tmp_path / "keys").iterdir())
    os.utime(path, (first.timestamp() - 61, first.timestamp() - 61))
    keys.find(secret)
    again = keys.named("ann").last_used_at
    assert again is not None
    assert again >= first


def test_limits_of_a_key_replace_the_servers_one_by_one(tmp_path: Path) -> None:
    keys, server = KeyFiles(tmp_path), Limits(live_jobs=5, rank=10, requests_per_second=1)
    secret = keys.create("ann", limits=Limits.model_validate({"rank": 50}))
    keys.find(secret)
    used = keys.named("ann").last_used_at
    keys.limit("ann", Limits.model_validate({"live_jobs": None, "rank": 20}))
    key = keys.find(secret)
    assert key is not None
    assert key.limits.given == {"live_jobs": None, "rank": 20}
    assert server.overridden(key.limits) == Limits(live_jobs=None, rank=20, requests_per_second=1)
    assert keys.named("ann").last_used_at == used


def test_an_unknown_name_is_told(tmp_path: Path) -> None:
    keys = KeyFiles(tmp_path)
    for act in (keys.revoke, keys.named, lambda name: keys.limit(name, Limits())):
        with pytest.raises(NotFound, match="no key ann"):
            act("ann")
