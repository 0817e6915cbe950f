"""The client when server, network, key, disk or clock fail: it continues, or raises a clear error."""

import errno
import http.server
import io
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from ncp_client import Client, NcpError, RateLimited, Refused, ServerUnavailable, Unauthorized
from ncp_client.history import Progress
from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.app.streaming import broadcast
from sparse_ncp.worker.owner_limits import Limits
from tests.support.api import Api, npy, planted, running_api
from tests.support.machine.disk import small_disk
from tests.support.machine.proxy import CuttingProxy, cutting_proxy
from tests.support.processes import kill, part
from tests.support.stack import ROOT, embedded_redis, server, wait_for

TENSOR = planted(9, 8, 7)
LONG: Any = {"method": "apg", "stop": {"max_iterations": 3000, "tolerance": 0}}
ENDLESS: Any = {"method": "apg", "stop": {"max_iterations": 10**6, "tolerance": 0}}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, ApiKeys]]:
    """A server that needs keys, without a worker, and its keys."""
    with (
        embedded_redis(tmp_path_factory.mktemp("locked"), keep_alive_seconds=0.5, min_free_bytes=1) as configuration,
        running_api(configuration, keys=True) as api,
    ):
        keys = ApiKeys(configuration.data)
        keys.create("first")
        yield api, keys


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def consume(calls: Iterator[object]) -> None:
    for _ in calls:
        pass


def one_sentence(error: pytest.ExceptionInfo[NcpError]) -> str:
    said = str(error.value)
    assert "\n" not in said
    assert "Errno" not in said
    return said


# No server, or another one


def test_a_server_that_is_not_there_is_one_sentence_and_at_once() -> None:
    began = time.monotonic()
    with Client(f"http://127.0.0.1:{free_port()}") as client, pytest.raises(ServerUnavailable) as error:
        client.upload(TENSOR)
    assert "no server answers at http://127.0.0.1:" in one_sentence(error)
    assert time.monotonic() - began < 5


def test_a_name_that_is_no_machine_is_one_sentence() -> None:
    with Client("http://no-such-machine.invalid:8000") as client, pytest.raises(ServerUnavailable) as error:
        list(client.jobs())
    assert "no-such-machine.invalid" in one_sentence(error)


@pytest.mark.parametrize("url", ["labserver:8000", "ftp://x", "http://", "http://a b", "http://h:port", "http://u:p@h"])
def test_an_address_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(NcpError, match=r"is not the address of a server; give one such as http://") as error:
        Client(url)
    one_sentence(error)


@contextmanager
def another_server(status: int, headers: dict[str, str]) -> Iterator[str]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "text/html", "Content-Length": "2", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (200, {}, "is not a sparse-ncp server"),
        (404, {}, "is not a sparse-ncp server"),
        (401, {"Content-Type": "application/json"}, "is not a sparse-ncp server"),
        (301, {"Location": "https://lab.example/"}, "redirects to https://lab.example/; use that address"),
        (502, {}, "cannot reach the server"),
    ],
)
def test_whatever_else_answers_is_named(status: int, headers: dict[str, str], words: str) -> None:
    with another_server(status, headers) as url, Client(url) as client, pytest.raises(ServerUnavailable) as error:
        client.job("x")
    assert words in one_sentence(error)


# Keys and limits


def test_a_wrong_or_missing_key_is_an_error_with_a_remedy(locked: tuple[Api, ApiKeys]) -> None:
    for key in (None, "ncp_wrong"):
        with Client(locked[0].address, key) as client, pytest.raises(Unauthorized, match="ncp keys create") as error:
            client.upload(TENSOR)
        one_sentence(error)
        assert error.value.status == 401


def test_a_key_revoked_in_mid_watch_ends_the_watching(
    locked: tuple[Api, ApiKeys], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "IDENTIFY_SECONDS", 0.5)
    api, keys = locked

    def revoke_when_watched() -> None:
        wait_for(lambda: api.app.state.broadcaster.subscribers, what="a watcher")
        keys.revoke("ann")

    with Client(api.address, keys.create("ann")) as client:
        job = client.submit(client.upload(TENSOR), 2)
        revoking = threading.Thread(target=revoke_when_watched)
        revoking.start()
        with pytest.raises(Unauthorized):
            job.wait(timeout=60)
        revoking.join()


def test_a_caller_that_is_too_fast_waits_and_goes_on(locked: tuple[Api, ApiKeys]) -> None:
    (address, *_), keys = locked
    with Client(address, keys.create("hasty", limits=Limits(requests_per_second=2))) as client:
        assert [client.usage()["owner"] for _ in range(23)] == ["hasty"] * 23
        assert client.upload(TENSOR).shape == TENSOR.shape
    with (
        Client(address, keys.create("hastier", limits=Limits(requests_per_second=1)), patience_seconds=0) as client,
        pytest.raises(RateLimited) as error,
    ):
        consume(client.usage() for _ in range(20))
    assert error.value.retry_after == 1
    assert pickle.loads(pickle.dumps(error.value)).retry_after == 1


def test_too_many_jobs_are_refused_at_once(locked: tuple[Api, ApiKeys]) -> None:
    (address, *_), keys = locked
    with Client(address, keys.create("busy", limits=Limits(live_jobs=1))) as client:
        tensor = client.upload(TENSOR)
        client.submit(tensor, 2)
        began = time.monotonic()
        with pytest.raises(RateLimited) as error:
            client.submit(tensor, 2)
        assert (error.value.kind, time.monotonic() - began < 5) == ("too-many-jobs", True)


# Refusals


def test_refused_settings_come_with_every_field_and_its_remedy(lab: Client) -> None:
    tensor = lab.upload(TENSOR)
    with pytest.raises(Refused) as error:
        lab.submit(tensor, 0, beta=-1.0, stop={"max_seconds": -1})
    assert {one.field for one in error.value.errors} == {"rank", "beta", "stop.max_seconds"}
    assert all(one.remedy in str(error.value) for one in error.value.errors)
    assert (error.value.status, error.value.kind) == (422, "invalid")
    assert error.value.request_id
    copied = pickle.loads(pickle.dumps(error.value))
    assert str(copied) == str(error.value)


NO_TENSORS = {
    "nothing": b"",
    "text": b"no tensor",
    "zip": b"PK\3\4 a zip",
    "MATLAB": b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(512),
    "complex": npy(1j * TENSOR),
    "truncated": npy(TENSOR)[:-8],
    "a vector": npy(TENSOR.ravel()),
}


@pytest.mark.parametrize("name", NO_TENSORS)
def test_a_file_that_is_no_tensor_is_refused_in_the_servers_words(
    name: str, client: httpx.Client, tmp_path: Path
) -> None:
    """The address is of no server: nothing is sent."""
    (tmp_path / "file").write_bytes(NO_TENSORS[name])
    problem = client.post("/v1/tensors", content=NO_TENSORS[name]).json()
    with Client("http://127.0.0.1:1") as lab:
        for source in (tmp_path / "file", str(tmp_path / "file"), io.BytesIO(NO_TENSORS[name])):
            with pytest.raises(Refused) as error:
                lab.upload(source)
            assert {**error.value.problem, "request_id": problem["request_id"]} == problem
            assert error.value.remedy
            assert error.value.remedy in str(error.value)


def test_entries_that_no_job_can_use_are_refused_by_the_server(lab: Client, tmp_path: Path) -> None:
    np.save(tmp_path / "zeros.npy", np.zeros((3, 4)))
    with pytest.raises(Refused, match="all entries are zero") as error:
        lab.upload(tmp_path / "zeros.npy")
    assert error.value.request_id


# The network and the server


def gapless(rows: list[Progress]) -> bool:
    return [row.iteration for row in rows] == list(range(1, len(rows) + 1))


def test_watching_goes_on_over_cut_connections_without_gap_or_repeat(api_with_worker: Api) -> None:
    with cutting_proxy(api_with_worker.address) as proxy, Client(proxy.address) as client:
        job = client.submit(client.upload(TENSOR), 3, method="apg", stop={"max_iterations": 400, "tolerance": 0.0})
        proxy.allowed = 20_000
        rows = list(job.watch())
        assert proxy.cuts > 2
    assert gapless(rows)
    assert len(rows) == 400
    assert job.state == "succeeded"


def test_a_submission_whose_answer_was_lost_is_one_job(api_with_worker: Api) -> None:
    with cutting_proxy(api_with_worker.address) as proxy, Client(proxy.address) as client:
        tensor = client.upload(planted(5, 4, seed=21))
        proxy.allowed = 0
        mended = threading.Thread(target=_mend_after_a_cut, args=(proxy,))
        mended.start()
        job = client.submit(tensor, 1)
        mended.join()
        assert [found.id for found in client.jobs(tensor=tensor)] == [job.id]


def _mend_after_a_cut(proxy: CuttingProxy) -> None:
    wait_for(lambda: proxy.cuts, what="a lost answer")
    proxy.allowed = None


def test_a_download_that_breaks_off_leaves_no_file(api_with_worker: Api, tmp_path: Path) -> None:
    with cutting_proxy(api_with_worker.address) as proxy, Client(proxy.address, patience_seconds=1) as client:
        tensor = client.upload(planted(30, 20, 10))
        proxy.allowed = 9_000
        with pytest.raises(ServerUnavailable, match="was lost"):
            tensor.download(tmp_path / "back.npy")
        assert not list(tmp_path.glob("*back*"))


def test_a_download_and_a_deletion_whose_answers_were_lost_are_done(api_with_worker: Api, tmp_path: Path) -> None:
    array = planted(30, 20, 10, seed=23)
    with cutting_proxy(api_with_worker.address) as proxy, Client(proxy.address) as client:
        tensor = client.upload(array)
        for act in (partial(tensor.download, tmp_path / "back.npy"), tensor.delete):
            proxy.cuts, proxy.allowed = 0, 0
            mended = threading.Thread(target=_mend_after_a_cut, args=(proxy,))
            mended.start()
            act()
            mended.join()
    assert np.array_equal(np.load(tmp_path / "back.npy"), array)


def test_watching_survives_a_server_that_is_killed_and_one_that_is_started_anew(tmp_path: Path) -> None:
    port = free_port()
    rows: list[Progress] = []
    with server(tmp_path, min_free_bytes=1, port=port, checkpoint_seconds=0.2) as running:
        with Client(running.address) as client:
            job = client.submit(client.upload(planted(20, 20, 20)), 5, **LONG)
        watching = threading.Thread(target=lambda: rows.extend(_watched(running.address, job.id)))
        watching.start()
        wait_for(lambda: _iteration(running.address, job.id) > 20, what="progress")
        kill(part(running, "api"))
        wait_for(lambda: _iteration(running.address, job.id) > 60, what="progress after the kill")
    with server(tmp_path, min_free_bytes=1, port=port, checkpoint_seconds=0.2):
        watching.join(120)
    assert not watching.is_alive()
    assert gapless(rows)
    assert len(rows) == 3000


def _watched(address: str, job_id: str) -> list[Progress]:
    with Client(address) as client:
        return list(client.job(job_id).watch())


def _iteration(address: str, job_id: str) -> int:
    try:
        with Client(address) as client:
            found = client.job(job_id).progress
    except ServerUnavailable:
        return 0
    return found.iteration if found else 0


def test_a_server_that_is_killed_in_mid_upload_stores_nothing(tmp_path: Path) -> None:
    tensor = planted(100, 100, 200)  # 16 MB
    with server(tmp_path, min_free_bytes=1) as running, Client(running.address) as client:
        api = part(running, "api")

        def kill_once(sent: int, total: int) -> None:
            if sent > total / 2:
                kill(api)

        with pytest.raises(ServerUnavailable, match="upload the tensor again") as error:
            client.upload(tensor, on_progress=kill_once)
        one_sentence(error)
        assert list(client.tensors()) == []
        assert client.upload(tensor).shape == tensor.shape
        assert len(list(client.tensors())) == 1


def test_two_gigabytes_are_sent_in_flat_memory(tmp_path: Path) -> None:
    """Upload a broadcast array, of which only 8 MB are in memory."""
    script = (
        "import resource, sys, numpy as np; from ncp_client import Client\n"
        "slab = np.random.default_rng(0).random((1024, 1024))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "tensor = Client(sys.argv[1]).upload(np.broadcast_to(slab, (256, 1024, 1024)))\n"
        "print(tensor.record['nbytes'], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    with server(tmp_path, min_free_bytes=1) as running:
        command = [sys.executable, "-c", script, running.address]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    nbytes, grown_kilobytes = map(int, ran.stdout.split())
    assert nbytes == 128 + 2**31
    assert grown_kilobytes < 64 * 1024


# This machine


def test_a_full_disk_leaves_no_half_file_under_the_final_name(lab: Client, tmp_path: Path) -> None:
    tensor = lab.upload(planted(100, 100, 100))
    with small_disk(tmp_path / "small") as disk:
        (disk.path / "tensor.npy").write_bytes(b"what was there")
        disk.fill()
        with pytest.raises(OSError, match="No space left") as error:
            tensor.download(disk.path / "tensor.npy")
        assert error.value.errno == errno.ENOSPC
        assert (disk.path / "tensor.npy").read_bytes() == b"what was there"
        assert {path.name for path in disk.path.iterdir()} == {"filler", "tensor.npy"}


def test_two_clients_at_once_get_their_own_jobs(api_with_worker: Api) -> None:
    def decompose(seed: int) -> Any:
        with Client(api_with_worker.address) as client:
            return client.decompose(planted(9, 8, 7, seed=5), 3, method="hals", seed=seed)

    with ThreadPoolExecutor(2) as clients:
        first, second = clients.map(decompose, (1, 2))
    assert first.job["id"] != second.job["id"]
    assert not np.array_equal(first.factors[0], second.factors[0])


def test_threads_share_one_client(lab: Client) -> None:
    tensor = lab.upload(TENSOR)
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda seed: lab.decompose(tensor, 2, method="hals", seed=seed), range(4)))
    assert [result.job["settings"]["seed"] for result in results] == [0, 1, 2, 3]


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_clock_that_is_wrong_changes_nothing(hours: int, lab: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    job = lab.submit(lab.upload(TENSOR), 3, **ENDLESS)
    with pytest.raises(TimeoutError):
        job.wait(timeout=1)
    assert job.cancel().wait(timeout=30).state == "cancelled"
