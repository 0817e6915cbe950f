"""The first job with curl: its lines work with their output in a log, and notice a server that stops."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.api import npy, planted
from tests.support.stack import ROOT, end_tree, server, wait_for

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the lines need curl")

PAGES = ("README.md", "docs/reference/http-api.md")
RECOMMENDED = '"preset": "recommended"'
ENDLESS = '"method": "apg", "beta": 0, "stop": {"max_iterations": 1000000, "tolerance": 0}'


def first_job(page: str, address: str) -> str:
    """Return the shell lines of a page's first job, for the server at this address."""
    text = (ROOT / page).read_text()
    snippets: list[str] = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = next(lines for lines in snippets if "curl" in lines)
    return lines.replace("http://127.0.0.1:8000", address)


@pytest.mark.parametrize("page", PAGES)
def test_the_lines_keep_a_log_of_everything(page: str, tmp_path: Path) -> None:
    (tmp_path / "tensor.npy").write_bytes(npy(planted(9, 8, 7)))
    with server(tmp_path, min_free_bytes=1) as running:
        script = f"{{ echo before\n{first_job(page, running.address)}\necho after; }} > all.log 2>&1"
        subprocess.run(["bash", "-eu", "-c", script], cwd=tmp_path, check=True)
    log = (tmp_path / "all.log").read_text().splitlines()
    assert (log[0], log[-1]) == ("before", "after")
    assert "event: end" in log
    with np.load(tmp_path / "factors.npz") as factors:
        assert factors["A1"].shape == (9, 8)


@pytest.mark.parametrize("page", PAGES)
def test_the_lines_fail_when_the_server_stops(page: str, tmp_path: Path) -> None:
    (tmp_path / "tensor.npy").write_bytes(npy(planted(9, 8, 7)))
    with server(tmp_path, min_free_bytes=1) as running:
        lines = first_job(page, running.address).replace(RECOMMENDED, ENDLESS).replace('"sparsity": 0.02, ', "")
        shell = subprocess.Popen(["bash", "-c", lines], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        events = tmp_path / "events.txt"
        wait_for(lambda: events.exists() and "event: progress" in events.read_text(), what="the first iteration")
        end_tree(running.process)
        shell.communicate(timeout=60)
    assert shell.returncode != 0
    assert not (tmp_path / "factors.npz").exists()


def test_the_lines_show_why_a_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tensor.npy").write_bytes(npy(planted(9, 8, 7)))
    with server(tmp_path, min_free_bytes=1) as running:
        lines = first_job("docs/reference/http-api.md", running.address).replace('"rank": 8', '"rank": 0')
        ran = subprocess.run(["bash", "-eu", "-c", lines], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "'field': 'rank'" in ran.stderr
