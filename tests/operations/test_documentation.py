"""The documents agree with the code: every snippet runs, every table matches the schema, every path exists."""

import contextlib
import hashlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from sparse_ncp.app.errors.handlers import PROBLEM_TYPES
from sparse_ncp.app.main import create_app
from sparse_ncp.solvers import METHODS, Settings, Stop
from sparse_ncp.worker.config import Configuration
from tests.support.api import npy, planted
from tests.support.stack import ROOT, Server, embedded_redis, server

PROJECT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (*(ROOT / name for name in PROJECT), *sorted(ROOT.glob("docs/**/*.md")))
}
README, GUIDE = PAGES["README.md"], PAGES["docs/how-to/running-a-server.md"]
API, METHOD_CHOICE, KEYS = (
    PAGES["docs/reference/http-api.md"],
    PAGES["docs/explanation/methods.md"],
    PAGES["docs/how-to/keys-and-limits.md"],
)
TUTORIAL = PAGES["docs/tutorial.md"]
REAL_DATA = PAGES["docs/how-to/real-data.md"]
PACKAGES = "app|benchmarks|clients|docs|ncp_client|solvers|tests|worker"
# Variables that the clients read.
CLIENT_VARIABLES = {"url", "key"}
# How many of them are run: by this file, the guide's by test_backup.py, those of the clients in tests/clients.
RUN = {
    ("README.md", "python"): 1,
    ("README.md", "sh"): 2,
    ("docs/reference/http-api.md", "python"): 1,
    ("docs/reference/http-api.md", "sh"): 1,
    ("docs/how-to/coming-from-other-software.md", "python"): 2,
    ("docs/how-to/fluorescence.md", "python"): 9,
    ("docs/how-to/matlab.md", "matlab"): 3,
    ("docs/explanation/methods.md", "python"): 3,
    ("docs/how-to/python.md", "python"): 3,
    ("docs/how-to/python.md", "sh"): 1,
    ("docs/how-to/r.md", "r"): 3,
    ("docs/how-to/real-data.md", "python"): 8,
    ("docs/how-to/running-a-server.md", "sh"): 3,
    ("docs/how-to/studies.md", "python"): 2,
    ("docs/tutorial.md", "python"): 2,
}


def snippets(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def commands(page: str, name: str) -> list[list[str]]:
    """The indented lines that begin with this command, without their comments."""
    lines = re.findall(rf"^ {{4}}({name} .*)$", page, re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of all tables whose first title is `heading`."""
    found = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert found, f"there is no table of {heading}"
    lines = [line for table in found for line in table.splitlines()]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def run_python(snippet: str) -> str:
    """Run a snippet and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(snippet, {})
    return output.getvalue()


def run_against(running: Server, command: list[str], snippet: str, folder: Path) -> str:
    ran = subprocess.run(
        [*command, snippet.replace("http://127.0.0.1:8000", running.address)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def ncp(*arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-P", "-m", "ncp_client.cli.main", *arguments]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))


def test_no_page_has_a_snippet_that_no_test_runs() -> None:
    found = Counter(
        (name, kind)
        for name, page in PAGES.items()
        for kind in re.findall(r"^```(python|sh|matlab|r)$", page, re.MULTILINE)
    )
    assert found == RUN


# Paths, links and names


@pytest.mark.parametrize("name", PAGES)
def test_every_path_exists(name: str) -> None:
    """Paths with a folder, and names of files without one."""
    page = re.sub(r"https?://\S+", "", PAGES[name])
    paths = {path.rstrip("./") for path in re.findall(rf"(?<![\w./-])(?:{PACKAGES})/[\w./-]+", page)}
    bare = set(re.findall(r"`([\w-]+\.(?:py|lua|toml|txt|yml))`", page))
    missing = {path for path in paths if not (ROOT / path).exists()}
    missing |= {file for file in bare if not any(ROOT.glob(file)) and not _is_in_a_package(file)}
    assert not missing


def _is_in_a_package(file: str) -> bool:
    return any(next((ROOT / package).rglob(file), None) for package in PACKAGES.split("|"))


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[name]):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


def traced() -> list[tuple[str, str]]:
    """File and function of every step of the traces."""
    steps = re.findall(r"^\| `([\w/]+\.py)` \| ([^|]*) \|", PAGES["docs/explanation/architecture.md"], re.MULTILINE)
    return [(file, function) for file, functions in steps for function in re.findall(r"`([\w.]+)`", functions)]


@pytest.mark.parametrize(("file", "function"), traced())
def test_every_function_of_the_traces_is_where_they_say(file: str, function: str) -> None:
    text = (ROOT / file).read_text()
    for part in function.split("."):
        assert re.search(rf"^\s*(?:async )?(?:def|class) {part}\b", text, re.MULTILINE), f"{function} is not in {file}"


@pytest.mark.parametrize("name", PAGES)
def test_every_target_of_make_exists(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    code = re.findall(r"^ {4}.*$|`[^`\n]+`", PAGES[name], re.MULTILINE)
    for target in re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(code)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


def test_every_benchmark_command_names_a_module() -> None:
    for page in PAGES.values():
        for module in re.findall(r"python -m ([\w.]+)", page):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


# Settings, methods and calls


@pytest.mark.parametrize("field", Configuration.model_fields)
def test_the_guide_has_every_setting_with_its_default(field: str) -> None:
    row = re.search(rf"^\| `NCP_{field.upper()}` \| ([^|]*) \|", GUIDE, re.MULTILINE)
    assert row is not None, f"NCP_{field.upper()} is not in the guide's table"
    default = Configuration.model_fields[field].default
    assert row[1].strip() == (f"`{default}`" if default is not None else "–")


def test_no_page_names_a_setting_that_does_not_exist() -> None:
    named = {name.lower() for name in re.findall(r"NCP_([A-Z_]+[A-Z])", "".join(PAGES.values()))}
    assert named <= Configuration.model_fields.keys() | CLIENT_VARIABLES


@pytest.mark.parametrize(("schema", "prefix"), [(Settings, ""), (Stop, "stop.")])
def test_the_table_of_settings_is_the_schema(schema: type[Settings] | type[Stop], prefix: str) -> None:
    for name, field in schema.model_fields.items():
        if name == "stop":
            continue
        default = "–" if field.default is None else f"`{field.default}`"
        row = f"| `{prefix}{name}` | {'required' if field.is_required() else default} | {field.description} |"
        assert row in PAGES["docs/reference/settings.md"]


def test_the_table_of_methods_is_the_registry() -> None:
    listed = {name.strip("`"): cells for name, *cells in rows(METHOD_CHOICE, "method")}
    assert listed.keys() == METHODS.keys()
    for name, method in METHODS.items():
        title, monotone, exact, _ = listed[name]
        assert title == method.title
        assert monotone.startswith("yes" if method.monotone else "no")
        assert exact.startswith("yes" if method.exact else "no")


def test_the_page_of_the_api_has_every_call_and_every_status() -> None:
    calls = " ".join(cells[0] for cells in rows(API, "call"))
    listed = {re.sub(r"{\w+}", "{}", path) for path in re.findall(r"/[\w/{}.]+", calls)}
    documented = {re.sub(r"{\w+}", "{}", path) for path in create_app(Configuration()).openapi()["paths"]}
    assert documented <= listed
    statuses = {int(status) for cells in rows(API, "status") for status in re.findall(r"\d+", cells[0])}
    assert {kind.status for kind in PROBLEM_TYPES.values()} <= statuses


# Snippets and commands


def test_the_readmes_python_finds_the_four_components(tmp_path: Path) -> None:
    assert run_python(snippets(README, "python")[0]) == "4 components, relative error 0.0084\n"
    assert np.load(tmp_path / "tensor.npy").shape == (60, 50, 40)


def test_the_example_finds_four_components_and_plots_them() -> None:
    assert run_python(snippets(METHOD_CHOICE, "python")[0]) == "4 components, relative error 0.0384\n"
    assert Path("components.png").read_bytes().startswith(b"\x89PNG")


def test_the_tutorial_finds_the_three_dyes() -> None:
    assert run_python("".join(snippets(TUTORIAL, "python"))).splitlines() == [
        "3 components, relative error 0.040",
        "emission peaks at [336, 356, 400] nm",
        "correlation of the strongest component with its dye: 1.000",
    ]


def test_the_lines_of_other_software_have_their_equals() -> None:
    for snippet in snippets(PAGES["docs/how-to/coming-from-other-software.md"], "python"):
        assert run_python(snippet).splitlines()[-1] != "False"


def test_the_long_run_resumes_and_ends() -> None:
    assert run_python(snippets(METHOD_CHOICE, "python")[2]).splitlines()[-1] == "tolerance"


def test_gaps_are_counted_and_new_samples_scored_in_one_step() -> None:
    printed = run_python(snippets(METHOD_CHOICE, "python")[1]).splitlines()
    assert int(printed[0].split()[0]) == 15
    assert printed[1].startswith("exact ")


def test_the_example_of_choosing_counts_the_components() -> None:
    choosing, comparing = snippets(PAGES["docs/how-to/studies.md"], "python")
    printed = run_python(choosing).splitlines()
    assert printed[-2] == "done 100%"
    assert printed[-1].startswith("suggested: 3, confidence very: 3 components")
    said = run_python(comparing).splitlines()
    assert len(said) == 24 + 1 + 8
    assert said[24].startswith("Rank ")


def test_the_fluorescence_page_prints_what_it_says() -> None:
    page = PAGES["docs/how-to/fluorescence.md"]
    shown = re.findall(r"^ {4}(.*)$", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    assert run_python("".join(snippets(page, "python"))).splitlines() == shown


def test_the_page_on_real_data_finds_the_dyes_and_the_dirty_cuvette() -> None:
    """Each snippet continues the one before, up to those for the server."""
    assert run_python("".join(snippets(REAL_DATA, "python")[:-1])).splitlines() == [
        "2520 readings are missing, relative error 0.068 over the others",
        "agreement with the three dyes 1.000, with zeros in their place 0.959",
        "7% of the entries are zero along mode 1; the others predict 11 times their residual there",
        "with zeros='missing', 2520 readings are missing",
        "sample 17 is fitted worst: 45 times the squared residual of the median",
        "relative error 0.040, agreement 1.000",
        "replicability 1.00, 1.00, 1.00",
        "the loadings of the first component are known to 0.008",
        "agreement of the scores with the amounts 1.000",
    ]


def test_the_page_on_real_data_runs_on_the_server_as_written(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1) as running:
        output = run_against(running, [sys.executable, "-c"], snippets(REAL_DATA, "python")[-1], tmp_path)
    assert output.splitlines() == [
        "250 missing, 1195 negative",
        "['missing', 'negative']",
        "succeeded 394 not observed",
        "12 samples with a residual, core consistency 100",
        "sample 3: [40, 25] of modes [2, 3]",
        "a table by emission (nm) of 40 rows",
        "succeeded 0.04",
    ]


def test_the_readme_submits_a_job_with_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensor.npy").write_bytes(npy(planted(9, 8, 7)))
    command = shlex.split(snippets(README, "sh")[0])
    assert command[0] == "ncp"
    with server(tmp_path, min_free_bytes=1) as running:
        monkeypatch.setenv("NCP_URL", running.address)
        ncp(*command[1:], cwd=tmp_path)
    with np.load(tmp_path / "factors.npz") as factors:
        assert factors["A1"].shape == (9, 8)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 100


@pytest.mark.skipif(shutil.which("curl") is None, reason="the lines to be tried are curl's")
@pytest.mark.parametrize("page", [README, API], ids=["README", "http-api"])
def test_a_first_job_runs_with_curl_as_written(page: str, tmp_path: Path) -> None:
    (tmp_path / "tensor.npy").write_bytes(npy(planted(9, 8, 7)))
    with server(tmp_path, min_free_bytes=1) as running:
        assert "event: end" in run_against(running, ["bash", "-eu", "-c"], snippets(page, "sh")[-1], tmp_path)
    with np.load(tmp_path / "factors.npz") as factors:
        assert [factors[f"A{mode}"].shape for mode in (1, 2, 3)] == [(9, 8), (8, 8), (7, 8)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the lines to be tried are curl's")
def test_curl_sends_a_tensor_with_its_length_or_in_chunks_and_learns_what_else_is_wrong(tmp_path: Path) -> None:
    content = npy(np.random.default_rng(0).random((300, 100, 50)))  # over a megabyte curl asks before it sends
    (tmp_path / "tensor.npy").write_bytes(content)
    sha256, chunked = hashlib.sha256(content).hexdigest(), "Transfer-Encoding: chunked"
    with server(tmp_path, min_free_bytes=1) as running:
        curl = ["curl", "-sS", f"{running.address}/v1/tensors"]
        for how in (["-X", "POST", "-T", "tensor.npy"], ["-X", "POST", "-T", "tensor.npy", "-H", chunked],
                    ["-X", "POST", "-T", "-"], ["-F", "file=@tensor.npy"]):  # fmt: skip
            with (tmp_path / "tensor.npy").open("rb") as file:
                sent = subprocess.run([*curl, *how], cwd=tmp_path, stdin=file, capture_output=True, check=True)
            assert json.loads(sent.stdout)["sha256"] == sha256, how
        for how in (["-d", "@tensor.npy"], ["-d", "tensor.npy"], ["-d", ""]):
            sent = subprocess.run([*curl, *how], cwd=tmp_path, capture_output=True, check=True)
            assert json.loads(sent.stdout)["remedy"].endswith("send it with curl -X POST -T tensor.npy"), how


def test_a_first_job_runs_in_python_as_written(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1) as running:
        output = run_against(running, [sys.executable, "-c"], snippets(API, "python")[0], tmp_path)
    assert "event: end" in output
    assert output.endswith("{'A1': (40, 3), 'A2': (30, 3), 'A3': (20, 3)}\n")


def test_the_commands_for_keys_run_in_their_order(tmp_path: Path) -> None:
    printed = [ncp(*command, cwd=tmp_path) for command in commands(KEYS, "ncp") if command[0] == "keys"]
    created, limited, _, listed, _ = printed
    assert created.startswith("ncp_")
    assert limited.startswith("ncp_")
    assert "live_jobs=5" in listed
    assert "rank" not in listed
    assert "ann" not in ncp("keys", "list", cwd=tmp_path)


def test_the_commands_for_owners_run_in_their_order(tmp_path: Path) -> None:
    asked = [command for command in commands(KEYS, "ncp") if command[0] == "owners"]
    with embedded_redis(tmp_path) as configuration:
        for command in asked:
            ncp(*command, "--redis-url", str(configuration.redis_url), cwd=tmp_path)
        listed = ncp("owners", "list", "--redis-url", str(configuration.redis_url), cwd=tmp_path)
    assert [line.split()[0] for line in listed.splitlines()] == ["OWNER", "ann", "bob"]
    assert "paused" not in listed


def test_the_commands_for_retention_run(tmp_path: Path) -> None:
    asked = commands(GUIDE, "ncp")
    assert asked
    with embedded_redis(tmp_path):
        pass  # without records there is nothing to look through
    for command in asked:
        ncp(*(str(tmp_path) if word == "/var/lib/ncp" else word for word in command), cwd=tmp_path)


def test_every_promise_of_reliability_names_tests_that_are_there() -> None:
    page = (ROOT / "docs/explanation/reliability.md").read_text()
    promised = page.partition("## What is promised")[2].partition("\n## ")[0]
    promises = re.findall(r"^- (.*(?:\n  .*)*)", promised, re.MULTILINE)
    test = re.compile(r"`([a-z_/]*test_[a-z_]+[.]py)`")
    assert len(promises) > 30
    assert [promise for promise in promises if test.search(promise) is None] == []
    named = set(test.findall(page))
    places = (
        ROOT,
        ROOT / "tests" / "faults",
        ROOT / "tests" / "faults" / "machine",
        ROOT / "tests" / "api" / "results",
    )
    assert [name for name in sorted(named) if not any((place / name).is_file() for place in places)] == []


# Deployment


def compose() -> dict[str, Any]:
    read: dict[str, Any] = YAML(typ="safe").load(ROOT / "docker-compose.yml")
    return read


def test_the_compose_file_follows_the_schema() -> None:
    checker = [str(Path(sys.executable).parent / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*checker, str(ROOT / "docker-compose.yml")], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_compose_files_redis_keeps_every_record() -> None:
    command = " ".join(compose()["services"]["redis"]["command"])
    for promise in ("--appendonly yes", "--appendfsync always", "--maxmemory-policy noeviction"):
        assert promise in command


def test_the_compose_file_sets_only_settings_that_are_there() -> None:
    names = {name for part in compose()["services"].values() for name in part.get("environment", {})}
    names = {name for name in names if name.startswith("NCP_")}
    names |= set(re.findall(r"(NCP_[A-Z_]+)=", (ROOT / "Dockerfile").read_text()))
    assert {name.removeprefix("NCP_").lower() for name in names} <= Configuration.model_fields.keys()


def test_workers_can_be_scaled_and_have_time_to_hand_jobs_back() -> None:
    worker = compose()["services"]["worker"]
    assert "container_name" not in worker
    assert "ports" not in worker
    assert float(worker["stop_grace_period"].removesuffix("s")) >= Configuration.model_fields["stop_seconds"].default
    assert all("stop_grace_period" in part for part in compose()["services"].values())


def test_the_compose_file_publishes_on_loopback_only() -> None:
    ports = [port for part in compose()["services"].values() for port in part.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_part_is_confined_and_bounded_and_redis_asks_for_a_password() -> None:
    services = compose()["services"]
    for part in services.values():
        assert part["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in part["security_opt"]
        assert part["read_only"] is True
        assert part["mem_limit"]
        assert part["pids_limit"]
    assert services["redis"]["command"][-2] == "--requirepass"
    assert all("${REDIS_PASSWORD:?" in services[name]["environment"]["NCP_REDIS_URL"] for name in ("api", "worker"))
    assert "cap_add" not in services["api"]


def test_images_are_named_by_their_exact_version() -> None:
    images = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    images.append(compose()["services"]["redis"]["image"])
    assert all(re.search(r":[0-9]+[.][0-9]+[.][0-9]+-", image) for image in images)


def test_the_image_runs_as_a_plain_user_and_reports_its_health() -> None:
    lines = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER ncp$", lines, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", lines, re.MULTILINE)
    assert "--compile" in lines


def test_the_image_installs_what_is_pinned_each_with_its_digest() -> None:
    lines = (ROOT / "Dockerfile").read_text()
    assert "--require-hashes -r image-requirements.txt" in lines
    assert "--no-deps --no-build-isolation ./ncp_client ." in lines
    sent = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", lines, re.MULTILINE)
    assert {name for names in copied for name in names.split()} <= sent
    listed = dict(line.split(" --hash=") for line in (ROOT / "image-requirements.txt").read_text().splitlines())
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in listed.values())
    pinned = {plain(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    found = {plain(name) for name in listed if not name.startswith("setuptools==")}
    assert found <= pinned, "run make hashes"
    server, client = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in ("", "ncp_client")
    )
    needed = [*server["dependencies"], *server["optional-dependencies"]["embedded"], *client["dependencies"]]
    names = {plain(re.split(r"[^\w-]", one)[0]) for one in needed} - {client["name"]}
    assert names <= {name.partition("==")[0] for name in found}, "run make hashes"


def plain(name: str) -> str:
    return name.lower().replace("_", "-")


# Project documents


def test_every_place_has_the_same_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = YAML(typ="safe").load(ROOT / "CITATION.cff")
    assert cited["version"] == version
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_both_distributions_carry_the_license() -> None:
    license_text = (ROOT / "LICENSE").read_text()
    assert license_text.startswith("BSD 3-Clause License\n")
    assert (ROOT / "ncp_client/LICENSE").read_text() == license_text
