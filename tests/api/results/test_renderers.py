"""Exports, plots and slices are made by processes of their own: once, for those who wait, within limits."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Export
from sparse_ncp.worker.errors import NotFound, RenderingRefused
from sparse_ncp.worker.operations.cleanup import Cleanup
from sparse_ncp.worker.rendering.fair_queue import FairQueue
from sparse_ncp.worker.rendering.jobs import FactorsExport
from sparse_ncp.worker.rendering.messages import Task
from sparse_ncp.worker.rendering.renderer import make_answer
from sparse_ncp.worker.rendering.request import Operations, Rendered
from tests.support.api import OWNER, Api, finished, http_client, planted, refused, running_api, submit, upload
from tests.support.processes import frozen
from tests.support.stack import wait_for

LAB = "makes exports"


@pytest.fixture(scope="module")
def job_id(api_with_worker: Api) -> str:
    with http_client(api_with_worker.address, LAB) as lab:
        job = submit(lab, upload(lab, planted(9, 8, 7))["id"], stop={"max_iterations": 5})
        return str(finished(lab, job["id"])["id"])


@contextmanager
def another_api(api: Api, **settings: object) -> Iterator[tuple[Api, httpx.Client]]:
    """Another API on the same records and files, whose template has begun, with a caller."""
    configuration: Configuration = api.app.state.configuration.model_copy(update=settings)
    with running_api(configuration) as made, http_client(made.address, LAB) as lab:
        yield made, lab


def template(api: Api) -> psutil.Process:
    return psutil.Process(api.app.state.renderers.template_pid)


def kept(api: Api, job_id: str) -> list[Path]:
    return sorted(Path(api.app.state.configuration.data).glob(f"rendered/{job_id}/*/content"))


def test_an_export_is_made_once_and_given_again(api_with_worker: Api, job_id: str) -> None:
    path = f"/v1/jobs/{job_id}/factors?format=csv&scale=unit"
    with another_api(api_with_worker) as (api, lab):
        first = lab.get(path)
        assert first.status_code == 200
        with frozen([template(api)]):  # nothing can be made now
            again = lab.get(path)
            assert again.content == first.content
            assert again.headers["etag"] == first.headers["etag"]
            assert lab.get(path, headers={"If-None-Match": first.headers["etag"]}).status_code == 304
            part = lab.get(path, headers={"Range": "bytes=5-9"})
            assert (part.status_code, part.content) == (206, first.content[5:10])


def test_a_kept_export_is_out_of_reach_for_others_and_goes_with_its_job(api_with_worker: Api) -> None:
    with http_client(api_with_worker.address, LAB) as lab, http_client(api_with_worker.address, "another") as other:
        job = submit(lab, upload(lab, planted(6, 5, 4, seed=9))["id"], stop={"max_iterations": 3})
        path = f"/v1/jobs/{finished(lab, job['id'])['id']}/factors?format=csv"
        assert lab.get(path).status_code == 200
        assert kept(api_with_worker, job["id"])
        refused(other.get(path), 404)
        assert lab.delete(f"/v1/jobs/{job['id']}").status_code == 204
        refused(lab.get(path), 404)
        assert not kept(api_with_worker, job["id"])


@dataclass(frozen=True)
class DeletedMeanwhile(FactorsExport):
    """An export whose job is deleted after its factors were read."""

    def make(self, operations: Operations) -> Rendered:
        made = super().make(operations)
        operations.jobs.delete(self.owner, self.id)
        return made


def test_nothing_is_kept_of_a_job_that_was_deleted_while_its_export_was_made(api_with_worker: Api) -> None:
    configuration: Configuration = api_with_worker.app.state.configuration
    with http_client(api_with_worker.address, LAB) as lab:
        job = submit(lab, upload(lab, planted(6, 5, 4, seed=8))["id"], stop={"max_iterations": 3})
        finished(lab, job["id"])
    operations = Operations.of(configuration)
    asked = DeletedMeanwhile(LAB, job["id"], Export(format="csv"))
    with pytest.raises(NotFound):
        make_answer(Task(asked, "digest", None), operations, configuration)
    assert not kept(api_with_worker, job["id"])

    operations.store.rendered.save(job["id"], "digest", b"by a renderer that was killed", None).file.close()
    removed = [item.name for item in Cleanup(operations.records, operations.store, configuration).run()]
    assert f"jobs/{job['id']}" in removed
    assert not kept(api_with_worker, job["id"])


def test_the_kept_exports_stay_within_their_quota(api_with_worker: Api, job_id: str) -> None:
    """Each counts as 64 KiB at least."""
    with another_api(api_with_worker, render_cache_bytes=3 << 16) as (api, lab):
        for scale in ("none", "unit", "max"):
            for order in ("none", "share"):
                assert lab.get(f"/v1/jobs/{job_id}/factors?format=nc&scale={scale}&order={order}").status_code == 200
        wait_for(lambda: len(kept(api, job_id)) <= 3, 10, "the oldest to be removed")
        assert kept(api, job_id)


def test_nothing_is_kept_with_a_quota_of_zero(api_with_worker: Api, job_id: str) -> None:
    with another_api(api_with_worker, render_cache_bytes=0) as (api, lab):
        before = kept(api, job_id)
        assert lab.get(f"/v1/jobs/{job_id}/factors?format=mat&scale=max&zeros=drop").status_code == 200
        assert kept(api, job_id) == before


def test_a_request_beyond_the_queue_is_refused_and_another_owner_is_not(api_with_worker: Api, job_id: str) -> None:
    with (
        another_api(api_with_worker, render_queue_per_owner=1, render_cache_bytes=0) as (api, lab),
        ThreadPoolExecutor(4) as pool,
    ):
        path = f"/v1/jobs/{job_id}/plots/components?format="
        assert lab.get(f"{path}svg").status_code == 200
        queue = api.app.state.renderers.queue
        with frozen([template(api)]):
            waiting = [pool.submit(lab.get, f"{path}png")]
            wait_for(lambda: queue.taken == 1, 10, "the first to be made")
            waiting.append(pool.submit(lab.get, f"{path}pdf"))
            wait_for(lambda: queue.waiting == 1, 10, "the second to wait")
            refusal = lab.get(f"{path}svg")
            assert "waiting" in refused(refusal, 503, "busy")["detail"]
            assert int(refusal.headers["retry-after"]) >= 1
            waiting.append(pool.submit(lab.get, "/v1/jobs", headers={OWNER: "another"}))
            assert waiting[-1].result().status_code == 200
        assert [answer.result().status_code for answer in waiting] == [200] * 3


def test_work_ends_when_its_client_is_gone(api_with_worker: Api, job_id: str) -> None:
    with another_api(api_with_worker, render_cache_bytes=0) as (api, lab):
        path = f"/v1/jobs/{job_id}/plots/components?format=pdf"
        assert lab.get(path).status_code == 200
        renderers, address = api.app.state.renderers, urlsplit(api.address)
        with frozen([template(api)]):
            with socket.create_connection((address.hostname, address.port)) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{OWNER}: {LAB}\r\n\r\n".encode())
                wait_for(lambda: renderers.queue.taken == 1, 10, "the plot to be made")
            wait_for(lambda: renderers.queue.taken == 0, 10, "the place to be free again")
            assert renderers.waiting_clients == 0
        assert lab.get(path).status_code == 200


def test_what_takes_too_long_or_too_much_memory_is_refused_with_its_reason(api_with_worker: Api) -> None:
    with another_api(api_with_worker, render_memory_bytes=1 << 24, render_cache_bytes=0) as (_, lab):
        tensor = upload(lab, planted(40_000, 3, 2))
        job = finished(lab, submit(lab, tensor["id"], rank=20, method="mu", stop={"max_iterations": 1})["id"])
        problem = refused(lab.get(f"/v1/jobs/{job['id']}/factors?format=csv"), 422, "needs-too-much-memory")
        assert "NCP_RENDER_MEMORY_BYTES" in problem["remedy"]
    with another_api(api_with_worker, render_seconds=0.3, render_cache_bytes=0) as (_, lab):
        problem = refused(lab.get(f"/v1/jobs/{job['id']}/factors?format=csv"), 503, "took-too-long")
        assert "NCP_RENDER_SECONDS" in problem["remedy"]


def test_owners_who_wait_take_turns_and_leave_a_place_for_others() -> None:
    served = list[str]()

    async def work(queue: FairQueue, owner: str, goes_on: asyncio.Event) -> None:
        async with queue.place(owner):
            served.append(owner)
            await goes_on.wait()

    async def run() -> None:
        queue, goes_on = FairQueue(2, queue=20, queue_per_owner=5, wait_seconds=60), asyncio.Event()
        greedy = [asyncio.create_task(work(queue, "greedy", goes_on)) for _ in range(6)]
        await asyncio.sleep(0)
        assert (queue.taken, queue.waiting) == (1, 5)
        with pytest.raises(RenderingRefused):
            await work(queue, "greedy", goes_on)
        modest = [asyncio.create_task(work(queue, "modest", goes_on)) for _ in range(2)]
        await asyncio.sleep(0)
        assert served == ["greedy", "modest"], "the second place is not for the owner of the first"
        greedy[-1].cancel()
        goes_on.set()
        await asyncio.gather(*greedy, *modest, return_exceptions=True)
        assert served[2:4] in (["greedy", "modest"], ["modest", "greedy"])
        assert len(served) == 7
        assert (queue.taken, queue.waiting) == (0, 0)

    asyncio.run(run())
