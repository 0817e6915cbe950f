"""Who may call the server: open on loopback until there is a key, then only with one."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from sparse_ncp.app.auth.api_keys import ApiKeys, digest_of
from sparse_ncp.app.auth.hosts import is_known, listed
from sparse_ncp.app.cli.main import main
from sparse_ncp.app.streaming import broadcast
from sparse_ncp.solvers import InvalidInput
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import NotFound
from sparse_ncp.worker.owner_limits import Limits
from tests.support.api import Api, holder, new_holder, planted, refused, running_api, submit, upload
from tests.support.stack import ROOT, embedded_redis, end_tree, server, wait_for


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    folder = tmp_path_factory.mktemp("keys")
    with embedded_redis(folder, min_free_bytes=1, allowed_hosts="lab.example, Other.Example") as made:
        yield made


@pytest.fixture
def fresh(shared_redis: Configuration, tmp_path: Path) -> Configuration:
    """For a server without a worker and without keys."""
    return shared_redis.model_copy(update={"data": tmp_path / "data"})


@pytest.fixture
def fresh_api(fresh: Configuration) -> Iterator[Api]:
    with running_api(fresh, keys=True) as running:
        yield running


def ncp(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sparse_ncp.app.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_makes_a_key_beside_a_running_server_and_takes_it_back(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1) as running, holder(running.address, None) as anonymous:
        job = submit(anonymous, upload(anonymous, planted(3, 3))["id"])["id"]
        made = ncp("keys", "create", "local", "--data", running.data)
        assert made.returncode == 0, made.stderr
        assert re.fullmatch(r"ncp_[A-Za-z0-9_-]{43}\n", made.stdout)
        refused(anonymous.get("/v1/jobs"), 401, "no-key")
        with holder(running.address, made.stdout.strip()) as local:
            assert local.get(f"/v1/jobs/{job}").status_code == 200  # the name is the owner: what was there is found
            reported = ncp("keys", "list", "--data", running.data)
            assert re.search(r"^local +\d{4}-\d\d-\d\d \d\d:\d\d +\d{4}-", reported.stdout, re.MULTILINE)
            assert made.stdout.strip() not in reported.stdout
            gone = ncp("keys", "revoke", "local", "--data", running.data)
            assert (gone.returncode, "last key" in gone.stderr) == (0, True)
            refused(local.get("/v1/jobs"), 401, "unknown-key")
        refused(anonymous.get("/v1/jobs"), 401, "no-key")  # it does not become open again
        assert made.stdout.strip() not in running.log.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another account")
def test_a_key_made_by_root_belongs_to_the_servers_account() -> None:
    """Else the server could not read it."""
    anonymous = 65534
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (data := Path(folder) / "data").mkdir(0o700)
        os.chown(data, anonymous, anonymous)
        assert ncp("keys", "create", "ann", "--data", data).returncode == 0
        assert {path.stat().st_uid for path in (data / "keys", *(data / "keys").iterdir())} == {anonymous}


def test_an_address_that_others_reach_is_served_once_there_is_a_key(tmp_path: Path) -> None:
    with embedded_redis(tmp_path / "data") as configuration, (tmp_path / "log").open("wb") as log:
        wanted = configuration.model_copy(update={"host": "0.0.0.0", "port": 0})
        refusal = ncp("api", "--host", "0.0.0.0", "--data", wanted.data, "--redis-url", str(wanted.redis_url))
        assert refusal.returncode == 2
        assert refusal.stderr.count("\n") == 1
        assert "ncp keys create" in refusal.stderr
        secret = ncp("keys", "create", "ann", "--data", wanted.data).stdout.strip()
        command = [sys.executable, "-m", "sparse_ncp.app.cli.main", "api"]
        process = subprocess.Popen(command, cwd=ROOT, env=wanted.environment(), stderr=log, start_new_session=True)
        try:
            found = wait_for(lambda: re.search(r"port (\d+)", (tmp_path / "log").read_text()), 30, "it")
            address = f"http://127.0.0.1:{found[1]}"
            with holder(address, secret) as ann, holder(address, None) as anonymous:
                assert wait_for(lambda: _answers(ann), 30, "an answer") == 200
                refused(anonymous.get("/v1/jobs"), 401)
                (wanted.data / "keys").rename(wanted.data / "gone")
                refused(anonymous.get("/v1/jobs"), 401)  # never open on such an address, whatever happens to the keys
        finally:
            end_tree(process)


def _answers(caller: httpx.Client) -> int:
    try:
        return caller.get("/v1/jobs").status_code
    except httpx.TransportError:
        return 0


def test_a_new_key_works_at_once_and_a_revoked_one_is_refused_at_once(fresh: Configuration, fresh_api: Api) -> None:
    with new_holder(fresh, fresh_api.address, "ann") as ann:
        job = submit(ann, upload(ann, planted(3, 3))["id"])["id"]
        with ann.stream("GET", f"/v1/jobs/{job}/events") as stream:
            next(stream.iter_lines())
            ApiKeys(fresh.data).revoke("ann")
            refused(ann.get(f"/v1/jobs/{job}"), 401, "unknown-key")
        refused(ann.get(f"/v1/jobs/{job}/events"), 401, "unknown-key")


def test_an_open_event_stream_ends_within_a_minute_of_its_keys_revocation(
    fresh: Configuration, fresh_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where keep-alive comments are further apart."""
    assert broadcast.IDENTIFY_SECONDS < 60
    monkeypatch.setattr(broadcast, "IDENTIFY_SECONDS", 0.5)
    assert fresh.keep_alive_seconds > 10
    with new_holder(fresh, fresh_api.address, "ann") as ann, new_holder(fresh, fresh_api.address, "bob") as bob:
        job, his = (submit(who, upload(who, planted(3, 3))["id"])["id"] for who in (ann, bob))
        with (
            ann.stream("GET", f"/v1/jobs/{job}/events") as stream,
            bob.stream("GET", f"/v1/jobs/{his}/events") as other,
        ):
            lines, others = stream.iter_lines(), other.iter_lines()
            next(lines)
            ApiKeys(fresh.data).revoke("ann")
            began = time.monotonic()
            assert "event: end" not in list(lines)
            assert time.monotonic() - began < 10
            assert any(line.startswith(": keep-alive") for line in others)  # goes on


@pytest.mark.parametrize(
    ("sent", "word"),
    [
        ({}, "no-key"),
        ({"Authorization": "Basic YTpi"}, "no-key"),
        ({"Authorization": "Bearer"}, "unknown-key"),
        ({"Authorization": "Bearer ncp_" + "a" * 43}, "unknown-key"),
        ({"Authorization": "Bearer ../keys"}, "unknown-key"),
        ({"Authorization": b"Bearer \xff\xfe"}, "unknown-key"),
    ],
)
def test_a_request_without_a_key_is_answered_with_how_to_send_one(
    fresh: Configuration, fresh_api: Api, sent: dict[str, str], word: str
) -> None:
    with new_holder(fresh, fresh_api.address, "ann"), holder(fresh_api.address, None) as anonymous:
        for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/tensors"), ("PUT", "/v1/nothing"), ("GET", "/v1")):
            answer = anonymous.request(method, path, headers=sent)
            problem = refused(answer, 401, word)
            assert "ncp keys create" in problem["remedy"]
            assert answer.headers["www-authenticate"].startswith("Bearer ")
            assert ('error="invalid_token"' in answer.headers["www-authenticate"]) == (word == "unknown-key")


def test_the_scheme_may_be_written_in_any_case(fresh: Configuration, fresh_api: Api) -> None:
    secret = ApiKeys(fresh.data).create("ann")
    with holder(fresh_api.address, None) as caller:
        for scheme in ("bearer", "BEARER", "Bearer "):
            answer = caller.get("/v1/jobs", headers={"Authorization": f"{scheme} {secret}"})
            assert answer.status_code == 200


def test_health_and_documentation_need_no_key(fresh: Configuration, fresh_api: Api) -> None:
    with new_holder(fresh, fresh_api.address, "ann"), holder(fresh_api.address, None) as anonymous:
        for path in ("/healthz", "/docs", "/openapi.json", "/"):
            assert anonymous.get(path, headers={"Host": "probe.example"}).status_code == 200
        assert anonymous.get("/readyz").status_code in (200, 503)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:9", "[::1]:80", "LOCALHOST:1", "lab.example", "other.example:9"]
)
def test_an_open_server_answers_to_its_own_names(fresh_api: Api, host: str) -> None:
    with holder(fresh_api.address, None) as anonymous:
        assert anonymous.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "x"])
def test_an_open_server_refuses_a_name_that_is_not_its_own(fresh_api: Api, host: str) -> None:
    """A page of the internet may point its own name to this machine."""
    with holder(fresh_api.address, None) as anonymous:
        problem = refused(anonymous.get("/v1/jobs", headers={"Host": host}), 421, "unknown-host")
        assert "NCP_ALLOWED_HOSTS" in problem["remedy"]


def test_an_empty_host_is_no_name() -> None:
    assert not is_known("", listed(None))
    assert not is_known("", listed(" , "))


@pytest.mark.parametrize(
    "header",
    [
        "[::1].evil.example", "[::1]evil.example", "[::1", "localhost:80@evil.example", "127.0.0.1:80@evil.example",
        "evil.example#localhost", "localhost:", "localhost:http", "localhost evil.example", "localhost/evil",
        "lab.example.evil.example", "[lab.example]", "[127.0.0.1].evil.example",
    ],
)  # fmt: skip
def test_a_host_is_parsed_not_matched(header: str, fresh_api: Api) -> None:
    with holder(fresh_api.address, None) as visitor:
        refused(visitor.get("/v1/jobs", headers={"Host": header}), 421, "unknown-host")


@pytest.mark.parametrize(
    "header", ["localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]", "[::1]:8000", "lab.example"]
)
def test_names_of_this_machine_and_allowed_ones_are_known(header: str) -> None:
    assert is_known(header, listed("lab.example"))


def test_with_keys_the_name_does_not_matter(fresh: Configuration, fresh_api: Api) -> None:
    with new_holder(fresh, fresh_api.address, "ann") as ann:
        assert ann.get("/v1/jobs", headers={"Host": "another.lab"}).status_code == 200


def test_a_key_of_an_owner_with_limits_is_listed_with_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(tmp_path)]
    assert main(["keys", "create", "ann", "--admin", "--rank", "50", "--live-jobs", "none", *data]) == 0
    assert main(["keys", "limit", "ann", "--rank", "default", "--job-seconds", "60", *data]) == 0
    capsys.readouterr()
    assert main(["keys", "list", *data]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["NAME", "ADMIN"]
    assert line.split()[:2] == ["ann", "yes"]
    assert line.split()[4:] == ["never", "live_jobs=none", "job_seconds=60.0"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["create", "a b"], "name"),
        (["create", "ann"], "revoke it first"),
        (["create", "bob", "--rank", "many"], "rank"),
        (["create", "bob", "--live-jobs", "0"], "live_jobs"),
        (["limit", "bob", "--rank", "3"], "no key bob"),
        (["revoke", "bob"], "no key bob"),
    ],
)
def test_a_wrong_command_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    ApiKeys(tmp_path).create("ann")
    assert main(["keys", *arguments, "--data", str(tmp_path)]) == 2
    reported = capsys.readouterr().err
    assert reported.count("\n") == 1
    assert word in reported
    assert [key.name for key in ApiKeys(tmp_path).all()] == ["ann"]


def test_the_openapi_document_describes_keys(fresh_api: Api) -> None:
    document = fresh_api.app.openapi()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert ({"401", "421", "429"} <= operation["responses"].keys()) == path.startswith("/v1/")
            assert ("security" in operation) == path.startswith("/v1/")


def test_a_key_has_32_random_bytes_behind_a_prefix_and_is_stored_as_its_digest(tmp_path: Path) -> None:
    first, second = (ApiKeys(tmp_path).create(name) for name in ("ann", "bob"))
    assert first != second
    assert first.startswith("ncp_")
    assert len(first.removeprefix("ncp_")) == 43  # base64 of 32 bytes
    files = list((tmp_path / "keys").iterdir())
    assert {path.stem for path in files} == {sha256(key.encode()).hexdigest() for key in (first, second)}
    assert not any(first.removeprefix("ncp_") in path.read_text() for path in files)


def test_only_the_servers_account_reads_them(tmp_path: Path) -> None:
    ApiKeys(tmp_path).create("ann")
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()] == [0o600]


def test_another_process_knows_a_new_key_and_forgets_a_revoked_one_at_once(tmp_path: Path) -> None:
    ours, theirs = ApiKeys(tmp_path), ApiKeys(tmp_path)
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
    keys = ApiKeys(tmp_path)
    keys.create("ann")
    with pytest.raises(InvalidInput, match="revoke it first"):
        keys.create("ann")

    def attempt(_: int) -> bool:
        try:
            return bool(keys.create("bob"))
        except InvalidInput:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1
    assert [key.name for key in keys.all()] == ["ann", "bob"]


@pytest.mark.parametrize("name", ["", "Ann", "a b", "../x", "a/b", "-a", "é", "a\n", "x" * 65])
def test_a_name_is_short_and_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="name"):
        ApiKeys(tmp_path).create(name)
    assert ApiKeys(tmp_path).all() == []


def test_the_last_use_is_noted_at_most_once_a_minute(tmp_path: Path) -> None:
    keys = ApiKeys(tmp_path)
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
    keys, server = ApiKeys(tmp_path), Limits(live_jobs=5, rank=10, requests_per_second=1)
    secret = keys.create("ann", limits=Limits.model_validate({"rank": 50}))
    keys.find(secret)
    used = keys.named("ann").last_used_at
    keys.limit("ann", Limits.model_validate({"live_jobs": None, "rank": 20}))
    key = keys.find(secret)
    assert key is not None
    assert key.limits.given == {"live_jobs": None, "rank": 20}
    assert server.overridden(key.limits) == Limits(live_jobs=None, rank=20, requests_per_second=1)
    assert keys.named("ann").last_used_at == used


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 64, b'{"name": 3}'], ids=["empty", "cut", "zeros", "wrong"])
def test_a_spoilt_key_file_is_named_and_the_other_keys_still_work(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    keys = ApiKeys(tmp_path)
    lost, kept = keys.create("lost"), keys.create("kept")
    spoilt = keys._file(digest_of(lost))
    spoilt.write_bytes(content)
    assert keys.find(lost) is None
    assert spoilt.name in caplog.text
    assert keys.find(kept) is not None
    assert [key.name for key in keys.all()] == ["kept"]
    assert keys.create("lost").startswith("ncp_")
    main(["keys", "list", "--data", str(tmp_path)])
    printed = capsys.readouterr()
    assert "kept" in printed.out
    assert spoilt.name in printed.err


def test_a_folder_among_the_keys_leaves_the_keys_working(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    keys = ApiKeys(tmp_path)
    lost, kept = keys.create("lost"), keys.create("kept")
    keys._file(digest_of(lost)).unlink()
    keys._file(digest_of(lost)).mkdir()
    assert keys.find(lost) is None
    assert keys._file(digest_of(lost)).name in caplog.text
    assert keys.find(kept) is not None
    main(["keys", "list", "--data", str(tmp_path)])
    printed = capsys.readouterr()
    assert "kept" in printed.out
    assert keys._file(digest_of(lost)).name in printed.err


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    keys = ApiKeys(tmp_path)
    for act in (keys.revoke, keys.named, lambda name: keys.limit(name, Limits())):
        with pytest.raises(NotFound, match="no key ann"):
            act("ann")
