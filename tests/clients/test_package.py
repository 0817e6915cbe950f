"""The client as a package: it installs alone, and the server's install brings it along."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.stack import ROOT

SERVER_ONLY = ("app", "celery", "fastapi", "numba", "redis", "scipy", "solvers", "worker")


def project(folder: Path) -> Any:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `pip install ./ncp_client` has put the client; what it needs is taken from this environment."""
    folder, source = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("source") / "ncp_client"
    shutil.copytree(ROOT / "ncp_client", source, ignore=shutil.ignore_patterns("__pycache__"))  # pip builds in place
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    ran = subprocess.run([*pip, str(source)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder


def test_the_client_works_where_no_server_is_installed(alone: Path, tmp_path: Path) -> None:
    script = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {SERVER_ONLY}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
sys.path.insert(0, {str(alone)!r})
import ncp_client
from ncp_client.cli.main import main
assert ncp_client.__file__.startswith({str(alone)!r}), ncp_client.__file__
for name in ncp_client.__all__:
    getattr(ncp_client, name)
assert main(["synth", "x.npy"]) == 0
assert main(["submit", "--help"]) == 0
assert main(["jobs", "--url", "http://127.0.0.1:1"]) == 3
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (alone / "ncp_client/py.typed").exists()
    assert (alone / "bin/ncp").exists()


def test_the_servers_install_brings_all_that_the_client_needs() -> None:
    """Both bring the same package, so both must ask for what it needs."""
    server, client = project(ROOT), project(ROOT / "ncp_client")
    needed = {requirement.name: requirement for requirement in map(Requirement, server["dependencies"])}
    for wanted in map(Requirement, client["dependencies"]):
        assert needed[wanted.name].specifier == wanted.specifier
    assert server["version"] == client["version"]
    assert server["scripts"] == client["scripts"]
    assert {requirement.name for requirement in map(Requirement, client["dependencies"])} == {
        "httpx", "numpy", "rich", "typer",
    }  # fmt: skip
