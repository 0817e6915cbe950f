"""`ncp gc` beside a running server, and with none."""

import subprocess
import sys
from pathlib import Path

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.store.local import LocalStore
from tests.support.api import finished, http_client, planted, submit, upload
from tests.support.stack import ROOT, server


def gc(data: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sparse_ncp.app.cli.main", "gc", "--data", str(data), *options]
    environment = {**Configuration(data=data).environment(), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_gc_works_beside_a_server_and_without_one(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1) as running, http_client(running.address) as client_with_worker:
        tensor = upload(client_with_worker, planted(6, 5, 4))["id"]
        first, second = (finished(client_with_worker, submit(client_with_worker, tensor)["id"])["id"] for _ in range(2))
        ran = gc(running.data, "--keep-jobs-days", "0", "--dry-run")
        assert ran.returncode == 0, ran.stderr
        assert f"would remove job {first} of local" in ran.stdout
        assert client_with_worker.get(f"/v1/jobs/{first}").status_code == 200
        assert gc(running.data).stdout == "removed 0 studies, 0 jobs, 0 tensors, 0 files: 0 bytes\n"
        assert client_with_worker.delete(f"/v1/jobs/{first}").status_code == 204
        assert gc(running.data, "--keep-tensors-days", "0").stdout.startswith(f"removed tensor {tensor} of local")
        assert client_with_worker.get(f"/v1/tensors/{tensor}").status_code == 404
        assert client_with_worker.get(f"/v1/jobs/{second}/factors").status_code == 200
    without = gc(running.data, "--keep-jobs-days", "0")
    assert without.returncode == 0, without.stderr
    assert "removed 0 studies, 1 job, " in without.stdout
    assert not list((running.data / "jobs").iterdir())
    with server(tmp_path, min_free_bytes=1) as running, http_client(running.address) as client_with_worker:
        assert client_with_worker.get("/v1/jobs").json()["items"] == []


def test_gc_finds_a_server_whose_socket_lies_elsewhere(tmp_path: Path) -> None:
    """The path of a socket may have 107 bytes; a data folder's may be longer."""
    folder = tmp_path / ("a-very-long-name-" * 6)
    folder.mkdir()
    with server(folder, min_free_bytes=1) as running, http_client(running.address) as client_with_worker:
        upload(client_with_worker, planted(6, 5, 4))
        assert "removed 0 studies, 0 jobs, 1 tensor, " in gc(running.data, "--keep-tensors-days", "0").stdout


def test_gc_never_judges_by_an_empty_redis(tmp_path: Path) -> None:
    """The files of a server whose Redis is elsewhere."""
    LocalStore(tmp_path)
    ran = gc(tmp_path, "--keep-tensors-days", "0")
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"ncp: {tmp_path} holds no records")
    assert not (tmp_path / "redis").exists()


def test_gc_makes_no_folder_and_says_so_in_one_line(tmp_path: Path) -> None:
    ran = gc(tmp_path / "mistyped")
    assert ran.returncode == 2
    assert ran.stderr == f"ncp: there is no data folder {tmp_path / 'mistyped'}; name it with --data\n"
    assert not (tmp_path / "mistyped").exists()
