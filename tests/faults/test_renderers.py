"""Renderers that are killed, and a disk without room: an answer is whole, or a refusal; none outlives the server."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from sparse_ncp.worker.config import Configuration
from tests.support.api import Api, finished, http_client, planted, refused, running_api, submit, upload
from tests.support.machine.disk import Disk
from tests.support.stack import descendants, embedded_redis, server, wait_for, worker

PLOT = "/v1/jobs/{}/plots/components?format=png"


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    with embedded_redis(tmp_path_factory.mktemp("lab"), render_cache_bytes=0) as made, worker(made):
        yield made


@pytest.fixture
def api(configuration: Configuration) -> Iterator[Api]:
    with running_api(configuration) as made:
        yield made


@pytest.fixture
def lab(api: Api) -> Iterator[httpx.Client]:
    with http_client(api.address) as made:
        yield made


def ended_job(lab: httpx.Client) -> str:
    job = submit(lab, upload(lab, planted(12, 10, 8))["id"], stop={"max_iterations": 3})
    return str(finished(lab, job["id"])["id"])


@contextmanager
def killing_renderers(api: Api, count: int) -> Iterator[list[int]]:
    """Kill so many renderers as soon as they begin; gives the processes that were killed."""
    template = api.app.state.renderers.template_pid
    children = Path(f"/proc/{template}/task/{template}/children")
    killed, ended = list[int](), threading.Event()
    wait_for(lambda: not children.read_text(), 10, "the renderer of the request before to end")

    def kill() -> None:
        while not ended.wait(0.002) and len(killed) < count:
            for pid in map(int, children.read_text().split()):
                if pid not in killed and len(killed) < count:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def test_a_killed_renderer_is_replaced_and_the_answer_is_whole(api: Api, lab: httpx.Client) -> None:
    path = PLOT.format(ended_job(lab))
    whole = lab.get(path).content
    with killing_renderers(api, 1) as killed:
        assert lab.get(path).content == whole
    assert len(killed) == 1


def test_renderers_that_are_killed_again_and_again_end_in_a_refusal(api: Api, lab: httpx.Client) -> None:
    path = PLOT.format(ended_job(lab))
    assert lab.get(path).status_code == 200
    with killing_renderers(api, 2) as killed:
        answer = lab.get(path)
    assert len(killed) == 2
    assert "killed" in refused(answer, 503, "busy")["detail"]
    assert int(answer.headers["retry-after"]) >= 1
    assert lab.get(path).status_code == 200


def test_the_template_is_started_again(api: Api, lab: httpx.Client) -> None:
    path = PLOT.format(ended_job(lab))
    whole = lab.get(path).content
    template = psutil.Process(api.app.state.renderers.template_pid)
    template.kill()
    assert lab.get(path).content == whole
    assert api.app.state.renderers.template_pid != template.pid


def test_a_full_disk_keeps_no_export_and_refuses_none_that_is_small(tmp_path: Path, disk: Disk) -> None:
    with embedded_redis(tmp_path / "redis", min_free_bytes=0) as elsewhere:
        configuration = elsewhere.model_copy(update={"data": disk.path})
        with running_api(configuration) as served, http_client(served.address) as lab:
            with worker(configuration):
                job = ended_job(lab)
            path = f"/v1/jobs/{job}/factors?format=csv"
            disk.fill()
            full = lab.get(path)
            assert full.status_code == 200
            assert not list(disk.path.glob("rendered/*/*/manifest.json"))
            disk.free()
            assert lab.get(path).content == full.content
            assert list(disk.path.glob("rendered/*/*/manifest.json"))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_renderer_outlives_the_server(tmp_path: Path, how: signal.Signals) -> None:
    with server(tmp_path) as running:
        with http_client(running.address) as lab:
            assert lab.get(PLOT.format(ended_job(lab))).status_code == 200
        api = next(one for one in descendants(running.process.pid) if "api" in one.cmdline())
        wait_for(lambda: len(api.children(recursive=True)) == 1, 10, "the renderer to end, and its template to stay")
        below = descendants(running.process.pid)
        running.process.send_signal(how)
        wait_for(lambda: not any(one.is_running() for one in below), 30, "every process to end")
