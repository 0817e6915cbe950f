"""Programs that are not Python's: where one is missing, its tests are skipped with a word, or fail if asked to.

`.ci/run` installs them and sets REQUIRE_ALL_TOOLS, so that nothing is skipped there.
"""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.stack import ROOT


def octave(script: str, folder: Path) -> str:
    """Return the output of a script."""
    if shutil.which("octave") is None or shutil.which("curl") is None:
        missing_tool("GNU Octave and curl are not installed")
    prepared = f"addpath('{ROOT / 'clients/matlab'}');\n{script}"
    return _run(["octave", "--no-gui", "--quiet", "--norc", "--eval", prepared], folder)


def r(script: str, folder: Path) -> str:
    """Return the output of a script."""
    if shutil.which("Rscript") is None or not _r_has_packages():
        missing_tool("R with httr2 and jsonlite is not installed")
    return _run(["Rscript", "--vanilla", "-e", f"source('{ROOT / 'clients/r/ncp.R'}')\n{script}"], folder)


@cache
def _r_has_packages() -> bool:
    looked = subprocess.run(["Rscript", "-e", "library(httr2); library(jsonlite)"], capture_output=True, check=False)
    return looked.returncode == 0


def missing_tool(reason: str) -> NoReturn:
    if os.environ.get("REQUIRE_ALL_TOOLS"):
        pytest.fail(f"{reason}, and REQUIRE_ALL_TOOLS is set")
    pytest.skip(reason)


def _run(command: list[str], folder: Path) -> str:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
