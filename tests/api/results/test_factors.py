"""Downloads of a running job, while its worker replaces the checkpoint under them."""

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from sparse_ncp.solvers import Settings, sweeps
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.store.local import LocalStore
from tests.support.api import Api, finished, http_client, planted, read_factors, refused, running_api, submit, upload
from tests.support.stack import embedded_redis, wait_for

# A hundred times as often as a worker does by default.
PAUSE_SECONDS = 0.1


@contextmanager
def checkpoints(configuration: Configuration, job_id: str) -> Iterator[None]:
    """A worker that does nothing but replace its checkpoint."""
    folder, stop = LocalStore(configuration.data).job(job_id), threading.Event()
    settings = Settings.model_validate({"rank": 3, "method": "mu", "stop": {"tolerance": 0}})

    def work() -> None:
        for state in sweeps(planted(6, 5, 4), settings, threads=1):
            folder.drop_checkpoints(keep=folder.save_checkpoint(1, state))
            if stop.wait(PAUSE_SECONDS):
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_every_download_is_whole_however_fast_checkpoints_follow(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path) as configuration,
        running_api(configuration) as running,
        http_client(running.address) as caller,
    ):
        job = submit(caller, upload(caller, planted(6, 5, 4))["id"])["id"]

        def download(turn: int) -> str:
            answer = caller.get(f"/v1/jobs/{job}/factors" + ("", "/1", "/3", "?format=mat", "?format=csv")[turn % 5])
            assert answer.status_code == 200, answer.text
            assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
            if turn % 5 == 0:
                assert len(read_factors(answer.content)) == 3
            return answer.headers["etag"]

        with checkpoints(configuration, job), ThreadPoolExecutor(4) as pool:
            wait_for(lambda: caller.get(f"/v1/jobs/{job}/factors").status_code == 200, 30, "the first checkpoint")
            seen = set(pool.map(download, range(300)))
        assert len(seen) > 3


def test_factors_that_are_being_deleted_are_not_found(api_with_worker: Api, client_with_worker: httpx.Client) -> None:
    """Readers of a folder that is being removed file by file get 404, not a server error."""
    job = finished(
        client_with_worker,
        submit(client_with_worker, upload(client_with_worker, planted(4, 4, 4))["id"], stop={"max_iterations": 3})[
            "id"
        ],
    )["id"]
    root = api_with_worker.app.state.store.root
    next((root / "jobs" / job).glob("factors-*/A2.npy")).unlink()
    assert client_with_worker.get(f"/v1/jobs/{job}/factors/1").status_code == 200
    refused(client_with_worker.get(f"/v1/jobs/{job}/factors/2"), 404, "not-found")
    for manifest in (root / "jobs" / job).glob("*/manifest.json"):  # also of a checkpoint that is not tidied up yet
        manifest.unlink()
    refused(client_with_worker.get(f"/v1/jobs/{job}/factors/1"), 404, "not-found")
