"""The documentation site builds without a warning, and loads nothing from another server."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.languages import missing_tool
from tests.support.stack import ROOT

LOADED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does. A broken link or a missing page ends the build."""
    if find_spec("mkdocs") is None:
        missing_tool("mkdocs is not installed")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_has_the_reference_of_the_package_and_the_api(site: Path) -> None:
    assert 'id="sparse_ncp.solvers.solve"' in (site / "reference/sparse-ncp.html").read_text()
    assert 'id="ncp_client.Client"' in (site / "reference/ncp-client.html").read_text()
    assert "POST /v1/jobs/estimate" in (site / "reference/openapi.html").read_text()


def test_the_site_loads_nothing_from_another_server(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert pages
    found = {address for page in pages for address in LOADED.findall(page.read_text())}
    assert not found
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"@import|url\([\"']?(?:https?:)?//", styles)
