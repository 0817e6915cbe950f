"""The distributions: the client installs alone, and the server beside packages named `app`, `solvers` and `worker`."""

import email
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.stack import ROOT

LICENSE = (ROOT / "LICENSE").read_bytes()
SERVER_ONLY = ("celery", "fastapi", "numba", "redis", "scipy", "sparse_ncp")


def project(folder: Path) -> Any:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the client into a folder; its dependencies are taken from this environment."""
    folder, source = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("source") / "ncp_client"
    shutil.copytree(ROOT / "ncp_client", source, ignore=shutil.ignore_patterns("__pycache__"))  # pip builds in place
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
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
from ncp_client.formats import FORMATS
assert "npy" in FORMATS
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


def test_the_formats_load_numpy_and_the_standard_library() -> None:
    """A server imports them, and needs nothing else of the client."""
    script = """
import sys
import numpy
before = set(sys.modules)
import ncp_client.formats, ncp_client.formats.npz
print(*{name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names - {"numpy"})
print(*(name for name in sys.modules if name.startswith("ncp_client") and "formats" not in name))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["ncp_client", "ncp_client"]


def test_the_server_depends_on_the_client_of_its_own_version() -> None:
    server, client = project(ROOT), project(ROOT / "ncp_client")
    assert server["version"] == client["version"]
    assert f"ncp-client=={client['version']}" in server["dependencies"]
    assert "scripts" not in server  # `ncp` belongs to the client, so either can be installed or removed first
    assert {requirement.name for requirement in map(Requirement, client["dependencies"])} == {
        "httpx", "numpy", "rich", "typer",
    }  # fmt: skip


FOREIGN = ("app", "solvers", "worker")
CHECK = """
import app, solvers, worker, sparse_ncp, ncp_client
from sparse_ncp.app.cli.main import main
assert [module.OWNER for module in (app, solvers, worker)] == ["another package"] * 3
for module in (sparse_ncp, ncp_client):
    assert module.__file__.startswith({folder!r}), module.__file__
assert main(["keys", "list", "--data", "data"]) == 0
"""


def wheel(source: Path, target: Path) -> Path:
    """Build the wheel of the distribution in a folder, without changing the folder."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    ran = subprocess.run([*pip, "--wheel-dir", str(target), str(source)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return next(target.glob("*.whl"))


def sdist(source: Path, target: Path) -> Path:
    """Build the source distribution of a folder, as a front end does."""
    backend = tomllib.loads((source / "pyproject.toml").read_text())["build-system"]["build-backend"]
    build = f"import importlib; importlib.import_module({backend!r}).build_sdist({str(target)!r})"
    ran = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return next(target.glob("*.tar.gz"))


def tracked_files(folder: str = ".") -> list[str]:
    command = ["git", "ls-files", folder]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Copies of the server's and the client's folders, and a foreign package with three common names."""
    folder = tmp_path_factory.mktemp("sources")
    for name in tracked_files():
        source, copy = ROOT / name, folder / "server" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(source.readlink())
        elif source.is_file():
            shutil.copyfile(source, copy)
    for name in FOREIGN:
        (folder / "foreign" / name).mkdir(parents=True)
        (folder / "foreign" / name / "__init__.py").write_text('OWNER = "another package"\n')
    (folder / "foreign/setup.py").write_text(
        f'from setuptools import setup\nsetup(name="foreign", packages={FOREIGN})\n'
    )
    return {"server": folder / "server", "client": folder / "server/ncp_client", "foreign": folder / "foreign"}


@pytest.fixture(scope="module")
def wheels(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: wheel(source, tmp_path_factory.mktemp(name)) for name, source in sources.items()}


def test_a_wheel_has_one_name_at_the_top_level(wheels: dict[str, Path]) -> None:
    for name, package in (("server", "sparse_ncp"), ("client", "ncp_client")):
        names = zipfile.ZipFile(wheels[name]).namelist()
        assert {path.partition("/")[0] for path in names if ".dist-info/" not in path} == {package}
        assert f"{package}/py.typed" in names
        about = next(path for path in names if path.endswith(".dist-info/METADATA"))
        assert "License-Expression: BSD-3-Clause" in zipfile.ZipFile(wheels[name]).read(about).decode()
        assert zipfile.ZipFile(wheels[name]).read(about.replace("METADATA", "licenses/LICENSE")) == LICENSE
    names = zipfile.ZipFile(wheels["server"]).namelist()
    for file in ("app/static/index.html", "worker/records/lua/state_machine.lua", "worker/records/lua/jobs/submit.lua"):
        assert f"sparse_ncp/{file}" in names


def test_a_wheel_has_every_module(wheels: dict[str, Path]) -> None:
    names = set(zipfile.ZipFile(wheels["server"]).namelist())
    assert {f"sparse_ncp/{path}" for room in ("app", "solvers", "worker") for path in modules(room)} <= names
    assert set(modules("ncp_client")) <= set(zipfile.ZipFile(wheels["client"]).namelist())


def modules(folder: str) -> list[str]:
    return [path for path in tracked_files(folder) if path.endswith(".py")]


@pytest.mark.parametrize("name", ["server", "client"])
def test_a_wheel_has_the_metadata_of_an_index(name: str, wheels: dict[str, Path]) -> None:
    archive = zipfile.ZipFile(wheels[name])
    (folder,) = {path.partition("/")[0] for path in archive.namelist() if ".dist-info/" in path}
    metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert "sparse-ncp developers" in metadata["Author"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", ["server", "client"])
def test_the_source_distribution_builds_the_wheel_of_the_checkout(
    name: str, sources: dict[str, Path], wheels: dict[str, Path], tmp_path: Path
) -> None:
    rebuilt = wheel(sdist(sources[name], tmp_path), tmp_path)
    assert contents(rebuilt) == contents(wheels[name])


def contents(archive: Path) -> dict[str, int]:
    """Return the checksum of every file in a wheel."""
    return {entry.filename: entry.CRC for entry in zipfile.ZipFile(archive).infolist()}


def test_uninstalling_a_package_with_common_names_leaves_the_server(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Use an environment of its own, where pip can uninstall, with the dependencies of this one."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv/bin/python"
    (library,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    needed = [path for path in sys.path if path.endswith("site-packages")]
    (library / "needed.pth").write_text("\n".join(needed))
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    install = [*pip, "install", "--quiet", "--no-deps", "--force-reinstall", "--no-index", "--ignore-installed"]
    for name in ("server", "client", "foreign"):
        subprocess.run([*install, str(wheels[name])], check=True)
    assert (library / "app/__init__.py").exists()
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", "foreign"], check=True)
    assert not any((library / name).exists() for name in FOREIGN)
    ran = subprocess.run(
        [str(tmp_path / "venv/bin/ncp"), "keys", "list", "--data", "data"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout.split()[0]) == (0, "NAME"), ran.stderr


@pytest.mark.parametrize("order", list(permutations(("server", "client", "foreign"))), ids="-".join)
def test_the_server_works_beside_a_package_with_common_names(
    wheels: dict[str, Path], order: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
    for name in order:
        ran = subprocess.run([*pip, str(wheels[name])], capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr  # pip warns of files that it replaces
    script = CHECK.format(folder=str(folder))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-P", "-c", script]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
