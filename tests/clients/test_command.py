"""The command `ncp`, at a terminal and in a pipe."""

import io
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
from importlib import metadata
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import typer

import ncp_client
import sparse_ncp.app.cli.main
from ncp_client import Client
from ncp_client.cli.main import main
from ncp_client.cli.names import CLIENT_COMMANDS, plugin_commands
from ncp_client.fields import JobFields, StopFields, job_body
from tests.solvers.real_data.patterns import UNIDENTIFIED, banded
from tests.support.api import Api, npy, planted
from tests.support.stack import ROOT, wait_for

NCP = [sys.executable, "-m", "ncp_client.cli.main"]
ENDLESS = ["--method", "apg", "--tolerance", "0", "--max-iterations", "1000000"]
ESCAPE = "\x1b"


@pytest.fixture(autouse=True)
def server_of_the_variables(api_with_worker: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NCP_URL", api_with_worker.address)
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "x.npy", planted(9, 8, 7))


class Ran(str):
    """Standard output of a command, with its exit code and its standard error."""

    code: int
    errors: str


@pytest.fixture
def ncp(capfd: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object, code: int = 0) -> Ran:
        capfd.readouterr()
        found = main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        assert found == code, printed.err
        said = Ran(printed.out)
        said.code, said.errors = found, printed.err
        return said

    return run


def test_a_whole_run_is_one_line(ncp: Any, tmp_path: Path) -> None:
    said = ncp("submit", "x.npy", "--rank", 5, "--sparsity", 0.02, "--watch", "--output", "factors.npz")
    assert "3 of 5 components, relative error 0.0" in said
    assert ESCAPE not in said + said.errors
    with np.load(tmp_path / "factors.npz") as factors:
        assert factors["A1"].shape == (9, 5)


def test_a_job_is_submitted_listed_shown_watched_downloaded_and_deleted(ncp: Any, lab: Client, tmp_path: Path) -> None:
    tensor = ncp("upload", "x.npy", "--name", "mine").strip()
    assert ncp("upload", "x.npy").strip() == tensor
    assert tensor in ncp("tensors")
    job = ncp("submit", tensor, "--rank", 2, "--beta", "[0, 0.1, 0]", "--method", "hals", "--name", "12").strip()
    assert "components" in ncp("watch", job)
    record = json.loads(ncp("show", job, "--json"))
    assert (record["name"], record["settings"]["beta"], record["state"]) == ("12", [0, 0.1, 0], "succeeded")
    assert ["id", job] in [line.split() for line in ncp("show", job).splitlines()]
    assert "9×8×7" in ncp("tensors")
    assert job in ncp("jobs", "--tensor", tensor, "--state", "succeeded")
    assert json.loads(ncp("jobs", "--json", "--limit", 1))[0]["id"] == job
    assert ncp("download", job).strip() == f"{job}.npz"
    ncp("download", job, "--mode", 2, "--output", "two.npy")
    assert np.load(tmp_path / "two.npy").shape == (8, 2)
    ncp("plot", job, "--output", "components.svg")
    assert "<svg" in (tmp_path / "components.svg").read_text()
    ncp("delete", job, tensor)
    assert "there is no job, study or tensor" in ncp("show", job, code=2).errors


def test_how_sure_the_components_are_stands_in_the_table(ncp: Any, lab: Client) -> None:
    run = ("submit", "x.npy", "--rank", 2, "--watch")
    title, *rows = ncp(*run, "--stability", "true", "--resamples", 5).splitlines()
    assert title.split() == ["COMPONENT", "WEIGHT", "SHARE", "REPLICABILITY", "SPLIT", "HALF"]
    assert 0 < float(rows[0].split()[3]) <= 1
    job = next(lab.jobs())
    assert json.loads(ncp("show", job.id, "--json"))["result"]["stability"]["resamples"] == 5
    study = ncp("study", "stability", job.record["tensor_id"], "--job-id", job.id, "--resamples", 6, "--watch")
    assert "REPLICABILITY" in study
    assert "REPLICABILITY" in ncp("show", job.id)
    assert "REPLICABILITY" not in ncp(*run)


def test_json_is_one_value_per_line_in_a_pipe(ncp: Any) -> None:
    lines = ncp("submit", "x.npy", "--rank", 2, "--method", "hals", "--watch", "--json").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["iteration"] for row in rows[:-1]] == list(range(1, len(rows)))
    assert rows[-1]["state"] == "succeeded"
    assert {method["name"] for method in json.loads(ncp("methods", "--json"))} >= {"hals"}
    assert ["anls-bpp", "yes"] in [line.split()[:2] for line in ncp("methods").splitlines()]


def test_a_tensor_comes_from_standard_input(ncp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    content = npy(planted(4, 4, seed=31))
    for command in (["upload", "-"], ["submit", "-", "--rank", "1"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert ncp(*command).strip()


@pytest.mark.parametrize("command", [["upload"], ["submit", "--rank", "1"]], ids=["upload", "submit"])
def test_a_file_of_another_kind_is_refused_before_it_is_sent(
    command: list[str], ncp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(512)
    Path("data.mat").write_bytes(content)
    for source in ("data.mat", "-"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        said = ncp(*command, source, "--url", "http://127.0.0.1:1", code=2).errors
        assert "file: is a MATLAB .mat file, not a .npy file (read it and save the array: " in said


def test_every_field_of_a_job_is_an_option(ncp: Any) -> None:
    shown = ncp("submit", "--help")
    for field in {*get_type_hints(JobFields), *get_type_hints(StopFields)} - {"stop"}:
        assert f"--{field.replace('_', '-')} " in shown


@pytest.mark.parametrize("name", [name for name in CLIENT_COMMANDS if name != "demo"])
def test_every_command_can_print_json(name: str, ncp: Any) -> None:
    assert "--json" in ncp(name, "--help")


@pytest.mark.parametrize(
    ("text", "expected"), [("12e4", {"job_id": "12e4"}), ('{"job_id": "1"}', {"job_id": "1"}), ("77", {"job_id": "77"})]
)
def test_an_id_may_look_like_a_number(text: str, expected: object, ncp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def seen(*asked: Any) -> Any:
        sent.append(job_body(*asked))
        return sent[-1]

    monkeypatch.setattr("ncp_client.client.job_body", seen)
    ncp("submit", "x.npy", "--rank", 1, "--initial", text, "--sparsity", "auto", "--rescale", "true", code=2)
    assert (sent[0]["initial"], sent[0]["sparsity"], sent[0]["rescale"]) == (expected, "auto", True)


# What goes wrong


def test_exit_codes_distinguish_failures(ncp: Any, lab: Client) -> None:
    assert "rank" in ncp("submit", "x.npy", "--rank", 0, code=2).errors
    assert "beta: " in ncp("submit", "x.npy", "--rank", 1, "--beta", "lots", code=2).errors
    assert "absent.npy: No such file" in ncp("submit", "absent.npy", "--rank", 1, code=2).errors
    assert "there is no tensor absent" in ncp("submit", "absent", "--rank", 1, code=2).errors
    assert "no server answers" in ncp("jobs", "--url", "http://127.0.0.1:1", code=3).errors
    for output in ("f.docx", "f.csv", "absent/f.npz"):
        assert "f." in ncp("submit", "x.npy", "--rank", 1, "--output", output, code=2).errors
    assert "is not a shape" in ncp("synth", "y.npy", "--shape", "many", code=2).errors
    job = lab.submit(lab.upload(planted(9, 8, 7)), 3, method="apg", stop={"max_iterations": 10**6, "tolerance": 0.0})
    ncp("cancel", job.id)
    assert f"job {job.id} is cancelled" in ncp("watch", job.id, code=1).errors


def test_the_versions_are_those_of_the_installed_distributions(ncp: Any) -> None:
    versions = {name: metadata.version(name) for name in ("ncp-client", "sparse-ncp")}
    assert ncp("--version") == "".join(f"{name} {version}\n" for name, version in versions.items())
    assert ncp_client.__version__ == versions["ncp-client"]
    assert sparse_ncp.__version__ == versions["sparse-ncp"]


def test_every_refusal_is_one_line(ncp: Any) -> None:
    for command in (["jobs", "--colour"], ["job"], [], ["submit", "x.npy"], ["download", "nothing"], ["show", "../x"]):
        said = ncp(*command, code=2)
        assert said.errors.startswith("ncp: ")
        assert (said, said.errors.count("\n")) == ("", 1)


def test_ctrl_c_leaves_the_job_running_and_says_how_to_return(ncp: Any, lab: Client) -> None:
    job = ncp("submit", "x.npy", "--rank", 3, *ENDLESS).strip()
    command = ["env", "--default-signal=INT", *NCP, "watch", job, "--json"]  # else ignored, if tests run in background
    watching = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["iteration"] == 1
    watching.send_signal(signal.SIGINT)
    said = watching.communicate()[1].decode()
    assert watching.returncode == 130
    assert said == f"ncp: job {job} continues on the server; ncp watch {job} shows it, ncp cancel {job} stops it\n"
    assert not lab.job(job).ended
    ncp("cancel", job)


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["at the end", "at once"])
def test_a_reader_that_goes_away_is_no_failure(ncp: Any, unbuffered: str) -> None:
    """Python notices a closed pipe when it prints or, with a buffer, when it exits."""
    ncp("submit", "x.npy", "--rank", 2)
    command, environment = f"{' '.join(NCP)} jobs | true", {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ran = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_terminal_gets_a_bar(ncp: Any, tmp_path: Path) -> None:
    job = ncp("submit", "x.npy", "--rank", 3, *ENDLESS).strip()
    shown, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    watching = subprocess.Popen([*NCP, "watch", job], cwd=ROOT, env=environment, stdout=terminal, stderr=terminal)
    os.close(terminal)
    said = _read_until(shown, "≤")
    assert ESCAPE in said
    assert "iteration" in said
    assert "objective" in said
    ncp("cancel", job)
    drained = bytearray()
    wait_for(lambda: _drain(shown, drained) or watching.poll() is not None, what="its end")
    assert watching.wait() == 1
    os.close(shown)


def _drain(shown: int, into: bytearray) -> bool:
    """Read what is there, and return whether the other side has closed."""
    try:
        into += os.read(shown, 65536)
    except OSError:
        return True
    return False


def test_names_cannot_command_a_terminal(ncp: Any, lab: Client) -> None:
    job = lab.submit(lab.upload(planted(4, 4)), 1, name="\x1b[31mred\x07")
    assert ESCAPE not in ncp("jobs") + ncp("show", job.id)


# Where the server is


def test_login_tries_and_stores_address_and_key_for_this_account_alone(
    ncp: Any, api_with_worker: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NCP_URL")
    stored = tmp_path / "config/ncp/config.toml"
    assert "no server answers" in ncp("login", "--url", "http://127.0.0.1:1", "--key", "k", code=3).errors
    assert not stored.exists()
    assert "knows you as local" in ncp("login", "--url", f"{api_with_worker.address}/v1/", "--key", 'a"k\\ey')
    assert stored.stat().st_mode & 0o777 == 0o600
    assert ncp("jobs") is not None
    assert Client().url == api_with_worker.address
    stored.chmod(0o644)
    assert "chmod 600" in ncp("jobs", code=2).errors
    stored.chmod(0o600)
    stored.write_text("url = nonsense")
    assert "run ncp login again" in ncp("jobs", code=2).errors


def test_login_prompts_for_missing_options_and_hides_the_key(api_with_worker: Api, tmp_path: Path) -> None:
    shown, terminal = pty.openpty()
    asking = subprocess.Popen([*NCP, "login"], cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)  # fmt: skip # noqa: E501
    os.close(terminal)
    said = _read_until(shown, "Address of the server")
    os.write(shown, f"{api_with_worker.address}\n".encode())
    said += _read_until(shown, "Key")
    wait_for(lambda: not termios.tcgetattr(shown)[3] & termios.ECHO, what="a terminal that shows nothing")
    os.write(shown, b"very-secret\n")
    said += _read_until(shown, "knows you as local")
    assert asking.wait() == 0
    os.close(shown)
    assert "very-secret" not in said
    assert 'key = "very-secret"' in (tmp_path / "config/ncp/config.toml").read_text()


def _read_until(shown: int, words: str) -> str:
    said = ""
    while words not in said:
        assert select.select([shown], [], [], 60)[0], said
        said += os.read(shown, 4096).decode(errors="replace")
    return said


def test_a_terminal_without_our_letters_gets_others(ncp: Any) -> None:
    ncp("upload", "x.npy")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run([*NCP, "tensors"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, "9?8?7" in ran.stdout) == (0, True)


def test_a_stored_key_goes_to_its_own_server_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ncp_client.http.config import Address, find_server, write_config

    monkeypatch.delenv("NCP_URL")
    assert find_server() == ("http://127.0.0.1:8000", None)
    write_config(Address("http://lab.example", "secret"))
    assert find_server() == ("http://lab.example", "secret")
    assert find_server("http://lab.example/") == ("http://lab.example", "secret")
    assert find_server("http://other.example") == ("http://other.example", None)
    monkeypatch.setenv("NCP_URL", "http://third.example")
    monkeypatch.setenv("NCP_KEY", "mine")
    assert find_server() == ("http://third.example", "mine")
    assert find_server("http://lab.example", "given") == ("http://lab.example", "given")


# Samples


def test_synth_plants_what_it_says(ncp: Any, tmp_path: Path) -> None:
    ncp("synth", "y.npy", "--shape", "30,20,10", "--rank", 3, "--noise", 0.05, "--factors", "truth.npz")
    tensor = np.load(tmp_path / "y.npy")
    with np.load(tmp_path / "truth.npz") as truth:
        model = np.einsum("ar,br,cr->abc", truth["A1"], truth["A2"], truth["A3"])
    assert tensor.min() >= 0
    assert np.linalg.norm(tensor - model) / np.linalg.norm(model) == pytest.approx(0.05, rel=0.05)
    ncp("synth", "again.npy", "--shape", "30,20,10", "--rank", 3, "--noise", 0.05)
    assert (tmp_path / "again.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()


def test_the_demo_runs_alone_and_leaves_factors_a_picture_and_nothing_else(tmp_path: Path) -> None:
    """The demo uses a server of its own, whatever the settings of this machine."""
    environment = {**os.environ, "NCP_URL": "http://127.0.0.1:1", "NCP_PORT": "1", "NCP_MAX_RANK": "1"}
    command = [*NCP, "demo", "--output", str(tmp_path / "out")]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("starting   a server; the first start compiles the solvers")
    assert "6 of 12 components, relative error 0.0" in ran.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"components.png", "factors.npz"}
    address = re.search(r"http://127\.0\.0\.1:(\d+)", ran.stdout)
    assert address is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address[1])))


# Two packages, one command


def test_the_servers_commands_join_ours(ncp: Any) -> None:
    group: Any = typer.main.get_command(sparse_ncp.app.cli.main.app)
    assert plugin_commands().keys() == group.commands.keys()
    shown = ncp("--help")
    for name in (*CLIENT_COMMANDS, *group.commands):
        assert f"\n  {name} " in shown
    assert "..." not in shown.partition("Commands:")[2]
    assert "NCP_PORT" in ncp("serve", "--help")
    assert "port: " in ncp("serve", "--port", "many", code=2).errors


def test_a_shell_completes_commands_of_both_and_their_options() -> None:
    for line, expected in (("ncp wa", "watch"), ("ncp ser", "serve"), ("ncp submit --spar", "--sparsity")):
        words = line.split()
        environment = {**os.environ, "_NCP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}  # fmt: skip # noqa: E501
        script = "import sys; from ncp_client.cli.main import main; sys.exit(main([]))"
        ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)  # fmt: skip # noqa: E501
        assert expected in ran.stdout.split(), ran.stderr


def loaded_by(*arguments: str) -> set[str]:
    script = (
        "import sys; from ncp_client.cli.main import main; code = main(sys.argv[1:]); "
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", script, *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


def test_a_short_command_loads_neither_numpy_nor_the_server() -> None:
    assert loaded_by("jobs") & {"fastapi", "numpy", "rich", "sparse_ncp", "matplotlib"} == set()
    assert "httpx" not in loaded_by("serve", "--help")


def test_a_short_command_costs_little_more_than_the_import_of_its_libraries() -> None:
    """Measure processor time, of both in turn: another process on the same core slows both."""

    def seconds(*arguments: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    command, libraries = ("-m", "ncp_client.cli.main", "jobs"), ("-c", "import httpx, typer")
    assert any(seconds(*command) < 1.6 * seconds(*libraries) for _ in range(10))


def test_show_says_where_a_model_is_large_without_readings(ncp: Any, lab: Client) -> None:
    result = lab.decompose(banded(), rank=3, preset="recommended", **UNIDENTIFIED)
    [warning] = [text for text in result.warnings if "not determined by the readings" in text]
    assert "; give a small sparsity, such as 0.002, or fewer components" in warning
    assert result.diagnostics is not None
    unobserved = result.diagnostics["unobserved"]
    assert f"component {unobserved['component']} is not determined" in warning
    said = ncp("show", result.job["id"])
    assert warning in said
    found = f"reaches {unobserved['ratio']:.3g} times the largest reading, in component {unobserved['component']}\n"
    shares = [f"{place}: {one['unobserved']:.1%}" for place, one in enumerate(result.diagnostics["components"], 1)]
    assert f"{found}share of each component there: {', '.join(shares)}\n" in said
