"""The `ncp` command: options, refusals, and one part by itself."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from sparse_ncp.app.auth.hosts import is_loopback
from sparse_ncp.app.cli.main import main
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.owner_limits import Limits
from tests.support.api import planted, refused, submit, upload
from tests.support.stack import ROOT, embedded_redis, end_tree, wait_for


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_these_addresses_stay_on_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.fixture
def refusal_of_host(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Return the one line with which a command refuses to listen on an address."""

    def reported(verb: str, host: str) -> str:
        monkeypatch.setenv("NCP_HOST", host)
        assert main([verb, "--redis-url", "redis://127.0.0.1:1/0"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    return reported


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5"])
@pytest.mark.parametrize("verb", ["serve", "api"])
def test_an_address_that_others_reach_needs_a_key(
    verb: str, host: str, refusal_of_host: Callable[[str, str], str]
) -> None:
    reported = refusal_of_host(verb, host)
    assert host in reported
    assert "ncp keys create" in reported


@pytest.mark.parametrize("host", ["nonsense", "300.1.1.1", "a b", "127.0.0.1:8000"])
@pytest.mark.parametrize("verb", ["serve", "api"])
def test_a_host_that_is_not_an_address_is_refused(
    verb: str, host: str, refusal_of_host: Callable[[str, str], str]
) -> None:
    reported = refusal_of_host(verb, host)
    assert f"{host!r} is not an address of this machine" in reported
    assert "NCP_HOST" in reported


@pytest.mark.parametrize("verb", ["api", "worker"])
def test_one_part_alone_needs_a_redis(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb]) == 2
    assert "NCP_REDIS_URL" in capsys.readouterr().err


def test_a_wrong_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "many", "--workers", "0"]) == 2
    wrong = "ncp: port: is not a whole number (give a whole number); workers: is less than 1 (give 1 or more)\n"
    assert capsys.readouterr().err == wrong


@pytest.mark.parametrize("url", ["foo", "http://host", "redis://:s3cret@host:many/0", "unix://", "localhost:6379"])
@pytest.mark.parametrize("verb", ["serve", "api", "worker", "status"])
def test_an_address_that_is_not_of_a_redis_is_refused_and_not_repeated(
    verb: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--redis-url", url]) == 2
    wrong = "ncp: redis_url: is not the address of a Redis (write redis://host:6379/0 or unix:///path/to/socket)\n"
    assert capsys.readouterr().err == wrong


def test_every_option_names_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("serve", "api", "worker", "status", "gc"):
        assert main([verb, "--help"]) == 0
        reported = capsys.readouterr().out
        options = set(re.findall(r"^  --([a-z-]+)", reported, re.MULTILINE)) - {"dry-run"}
        assert "data" in options
        for option in options:
            assert f"NCP_{option.upper().replace('-', '_')}" in reported


@pytest.mark.parametrize("verb", ["create", "limit"])
def test_every_limit_is_an_option_of_a_key(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", verb, "--help"]) == 0
    reported = capsys.readouterr().out
    for name in Limits.model_fields:
        assert f"--{name.replace('_', '-')} N " in reported


@pytest.mark.parametrize(
    ("arguments", "reason", "helper"),
    [
        ([], "Missing command", "ncp"),
        (["start"], "No such command 'start'", "ncp"),
        (["serve", "--prot", "1"], "No such option: --prot", "ncp serve"),
        (["keys", "create"], "Missing argument 'NAME'", "ncp keys create"),
    ],
)
def test_a_mistyped_command_is_one_line_that_names_its_help(
    arguments: list[str], reason: str, helper: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    reported = capsys.readouterr().err
    assert reported.startswith(f"ncp: {reason}")
    assert reported.endswith(f"(see {helper} --help)\n")
    assert reported.count("\n") == 1


def loaded_by(statement: str) -> set[str]:
    """The top-level modules of a new process after this statement."""
    script = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


@pytest.mark.parametrize(
    ("module", "others"),
    [
        ("sparse_ncp.app.cli.main", {"celery", "fastapi", "numpy", "redis", "rich", "scipy", "starlette", "uvicorn"}),
        (
            "sparse_ncp.app.server.launcher",
            {"celery", "fastapi", "numpy", "redis", "rich", "scipy", "starlette", "uvicorn"},
        ),
        ("sparse_ncp.worker.execution.celery_worker", {"fastapi", "rich", "starlette", "uvicorn"}),
        ("sparse_ncp.app.server.http.api", {"celery", "numba", "rich", "scipy"}),
    ],
)
def test_a_command_loads_only_what_it_needs(module: str, others: set[str]) -> None:
    assert loaded_by(f"import sparse_ncp.app.cli.main, {module}") & others == set()


def test_help_and_refusals_are_plain_text() -> None:
    statement = "from sparse_ncp.app.cli.main import main; main(['serve', '--help']); main(['serve', '--port', 'many'])"
    assert "rich" not in loaded_by(statement)


def test_the_api_says_that_its_port_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [
            sys.executable,
            "-m",
            "sparse_ncp.app.cli.main",
            "api",
            "--port",
            port,
            "--redis-url",
            "redis://127.0.0.1:1/0",
        ]
        environment = Configuration(data=tmp_path).environment()
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"ncp: port {port}")
    assert ended.stderr.count("\n") == 1


def test_the_api_alone_serves_logs_and_stops_within_seconds(tmp_path: Path) -> None:
    with embedded_redis(tmp_path / "data") as configuration, (tmp_path / "log").open("wb") as log:
        environment = configuration.model_copy(update={"port": 0}).environment()
        command = [sys.executable, "-m", "sparse_ncp.app.cli.main", "api"]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, stdout=log, start_new_session=True)
        try:
            found = wait_for(
                lambda: re.search(r"listening on (\S+) port (\d+)", (tmp_path / "log").read_text()), 30, "it"
            )
            with httpx.Client(base_url=f"http://{found[1]}:{found[2]}", trust_env=False) as caller:
                job = submit(caller, upload(caller, planted(3, 3))["id"])
                refused(caller.get("/v1/jobs/nothing", headers={"X-Request-Id": "seen-in-the-log"}), 404)
                with caller.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
                    next(answer.iter_lines())
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(5) == 0
        finally:
            end_tree(process)
    assert re.search(
        r"INFO ncp.http GET /v1/jobs/nothing 404 [0-9.]+ ms request_id=seen-in-the-log owner=local job_id=nothing\n",
        (tmp_path / "log").read_text(),
    )
    assert "Traceback" not in (tmp_path / "log").read_text()
