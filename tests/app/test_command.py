"""The `ncp` command: options, refusals, and one part by itself."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from app.command import main
from app.hosts import is_loopback
from tests.app.api import planted, refused, submit, upload
from tests.stack import ROOT, embedded_redis, end_tree, wait_for
from worker.configuration import Configuration


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_these_addresses_stay_on_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5"])
@pytest.mark.parametrize("verb", ["serve", "api"])
def test_an_address_that_others_reach_needs_a_key(
    verb: str, host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCP_HOST", host)
    assert main([verb, "--redis-url", "redis://127.0.0.1:1/0"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert host in told
    assert "ncp keys create" in told


@pytest.mark.parametrize("verb", ["api", "worker"])
def test_one_part_alone_needs_a_redis(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb]) == 2
    assert "NCP_REDIS_URL" in capsys.readouterr().err


def test_a_wrong_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "many"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ncp: port:")
    assert told.count("\n") == 1


def test_every_option_names_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("serve", "api", "worker"):
        with pytest.raises(SystemExit) as ended:
            main([verb, "--help"])
        assert ended.value.code == 0
        told = capsys.readouterr().out
        for option in re.findall(r"^  --([a-z-]+)", told, re.MULTILINE):
            assert f"NCP_{option.upper().replace('-', '_')}" in told


def test_the_api_says_that_its_port_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "app.command", "api", "--port", port, "--redis-url", "redis://127.0.0.1:1/0"]
        environment = Configuration(data=tmp_path).environment()
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"ncp: port {port}")
    assert ended.stderr.count("\n") == 1


def test_the_api_alone_serves_logs_and_stops_within_seconds(tmp_path: Path) -> None:
    with embedded_redis(tmp_path / "data") as configuration, (tmp_path / "log").open("wb") as log:
        environment = configuration.model_copy(update={"port": 0}).environment()
        command = [sys.executable, "-m", "app.command", "api"]
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
