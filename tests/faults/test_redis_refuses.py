"""Redis answers but refuses to write: its memory is full, it is a replica, it lacks replicas, or its disk is full."""

import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import Unavailable, WritesRefused
from sparse_ncp.worker.records.redis.connection import RedisConnection, connect
from tests.support.api import http_client, new_holder, npy, refused, running_api
from tests.support.jobs import LONG, TENSOR, Backend, ended, job_process, reached
from tests.support.machine.disk import covered_read_only, has_own_mounts
from tests.support.stack import embedded_redis, wait_for, worker
from tests.support.watcher import is_gapless, watch

LEASE_SECONDS = 2.0
SHORT = {"rank": 2, "stop": {"max_iterations": 3}}


class Refusal(NamedTuple):
    """How a Redis is made to refuse writes and to accept them again, and a word of the reason."""

    begin: Callable[[Any, Path], object]
    end: Callable[[Any, Path], object]
    reason: str


def fail_to_save(client: Any, data: Path) -> None:
    """Let Redis fail to save a snapshot, as with a full disk: a folder has the name of its file."""
    (data / "redis" / "dump.rdb" / "in the way").mkdir(parents=True)
    client.config_set("save", "3600 1")
    client.bgsave()
    wait_for(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", what="the snapshot to fail")


REFUSALS = {
    "memory": Refusal(
        lambda client, _: client.config_set("maxmemory", 1),
        lambda client, _: client.config_set("maxmemory", 0),
        "memory",
    ),
    "replica": Refusal(
        lambda client, _: client.replicaof("127.0.0.1", 1), lambda client, _: client.replicaof("NO", "ONE"), "replica"
    ),
    "replicas": Refusal(
        lambda client, _: client.config_set("min-replicas-to-write", 1),
        lambda client, _: client.config_set("min-replicas-to-write", 0),
        "replicas",
    ),
    "disk": Refusal(fail_to_save, lambda client, _: client.config_set("save", ""), "disk"),
}


@contextmanager
def refusing(configuration: Configuration, kind: str) -> Iterator[None]:
    with connect(configuration) as client:
        REFUSALS[kind].begin(client, configuration.data)
        try:
            yield
        finally:
            REFUSALS[kind].end(client, configuration.data)


def writes(caller: httpx.Client, job: str, tensor: str) -> Iterator[httpx.Response]:
    """Yield the answer to every kind of request that writes, without those that delete or cancel."""
    body = {"tensor_id": tensor, "rank": 2, "method": "hals"}
    yield caller.post("/v1/jobs", json=body)
    yield caller.post("/v1/jobs", json={**body, "initial": {"job_id": job}})
    yield caller.post("/v1/studies", json={"kind": "compare", "tensor_id": tensor, "ranks": [2], "methods": ["hals"]})
    yield caller.post("/v1/tensors", content=npy(TENSOR))
    yield caller.post("/v1/tensors", content=iter([npy(TENSOR)]))
    yield caller.post("/v1/samples/evoked")
    yield caller.patch(f"/v1/jobs/{job}", json={"name": "new"})
    yield caller.patch(f"/v1/tensors/{tensor}", json={"name": "new"})
    axes = [{"name": f"mode {mode}", "values": list(range(length))} for mode, length in enumerate(TENSOR.shape, 1)]
    yield caller.put(f"/v1/tensors/{tensor}/axes", json=axes)


def reads(caller: httpx.Client, job: str, tensor: str, sha256: str) -> dict[str, int]:
    """Return the status of every request that reads, apart from event streams and /readyz."""
    known = {"job_id": job, "tensor_id": tensor, "study_id": "none", "mode": 1, "plot": "objective", "owner": "local"}
    paths = [
        path.format(**known)
        for path, operations in caller.get("/openapi.json").json()["paths"].items()
        if "get" in operations and not path.endswith(("/events", "/readyz", "/slice", "/model"))
    ]
    queries = [f"/v1/tensors?sha256={sha256}", "/v1/jobs?name=x", f"/v1/tensors/{tensor}/slice?mode=1&index=1"]
    return {path: caller.get(path).status_code for path in [*paths, *queries]}


@pytest.mark.parametrize("kind", REFUSALS)
def test_writes_are_refused_with_the_reason_while_reads_and_jobs_go_on(kind: str, tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, lease_seconds=LEASE_SECONDS, checkpoint_seconds=0.05, keep_alive_seconds=1.0) as made,
        worker(made) as running,
        running_api(made) as served,
        http_client(served.address) as caller,
    ):
        backend = Backend(made)
        before = ended(backend.records, backend.submit(**SHORT))
        known = before.id, backend.tensor.id
        readable = reads(caller, *known, backend.tensor.sha256)
        job = backend.submit(**LONG)
        with watch(served.address, job.id) as watcher:
            reached(backend.records, job, 20)
            computing = job_process(running.pid)
            behind = backend.submit(**SHORT)
            with refusing(made, kind):
                since, worked = time.monotonic(), sum(computing.cpu_times()[:2])
                for answer in writes(caller, *known):
                    problem = refused(answer, 503, "read-only")
                    assert REFUSALS[kind].reason in problem["detail"]
                    assert int(answer.headers["Retry-After"]) > 0
                assert reads(caller, *known, backend.tensor.sha256) == readable
                errors = refused(caller.get("/readyz"), 503, "not-ready")["errors"]
                assert REFUSALS[kind].reason in {error["field"]: error["problem"] for error in errors}["writable"]
                wait_for(
                    lambda: time.monotonic() - since > 2 * LEASE_SECONDS and sum(computing.cpu_times()[:2]) > worked,
                    what="two leases, with the job computing",
                )
                assert running.poll() is None
            assert backend.as_if_nothing_happened(job, 180).attempt == 1
            assert is_gapless(watcher.until_end())
        assert backend.as_if_nothing_happened(behind).attempt == 1
        assert running.poll() is None
        assert wait_for(lambda: caller.get("/readyz").status_code == 200, what="the server to be ready")


def test_what_frees_memory_is_possible_while_there_is_none(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, max_requests_per_second=1) as made,
        running_api(made, keys=True) as served,
        new_holder(made, served.address, "ann") as ann,
    ):
        tensor = ann.post("/v1/tensors", content=npy(TENSOR)).json()["id"]
        job = ann.post("/v1/jobs", json={"tensor_id": tensor, "rank": 2, "method": "hals"}).json()["id"]
        with refusing(made, "memory"):
            assert ann.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"
            assert ann.delete(f"/v1/jobs/{job}").status_code == 204
            assert ann.delete(f"/v1/tensors/{tensor}").status_code == 204
            answers = [ann.get("/v1/jobs").status_code for _ in range(10)]
        assert answers.count(429) > 0, "requests are counted without memory, too"
        with refusing(made, "replica"):
            assert ann.get("/v1/jobs").status_code == 200


def first_outcome(answers: list[Any]) -> Any:
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'. script: 0a, on @user_script:1.", WritesRefused),
        ("READONLY You can't write against a read only replica.", WritesRefused),
        ("MISCONF Errors writing to the AOF file: No space left on device", WritesRefused),
        ("NOREPLICAS Not enough good replicas to write.", WritesRefused),
        ("LOADING Redis is loading the dataset in memory", Unavailable),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Unavailable),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", Unavailable),
    ],
)
def test_every_refusal_is_recognised_in_commands_scripts_and_pipelines(
    line: str, kind: type[Unavailable], tmp_path: Path
) -> None:
    class Refusing(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while count := self.rfile.readline():  # of the parts of a command; each is a length and a line
                command = [self.rfile.readline() and self.rfile.readline().strip() for _ in range(int(count[1:]))]
                first = {b"HELLO": "%1\r\n+proto\r\n:3", b"CLIENT": "+OK"}.get(command[0], f"-{line}")
                self.wfile.write(f"{first}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"redis://127.0.0.1:{server.server_address[1]}"
        redis = RedisConnection.of(Configuration(data=tmp_path, redis_url=address))
        calls = (
            lambda: redis.command("SET", "name", "value"),
            lambda: redis.commands([("SET", "name", "value")]),
            lambda: redis.script("stats/check_writes"),
            lambda: first_outcome(redis.script_calls("stats/check_writes", [[]])),
        )
        for call in calls:
            with pytest.raises(kind) as caught:
                call()
            assert type(caught.value) is kind
        redis.close()
        server.shutdown()


@pytest.mark.parametrize("folder", ["jobs", "tensors", "uploads", "keys", "sessions"])
def test_a_single_folder_that_cannot_be_written_is_named(folder: str, tmp_path: Path) -> None:
    if not has_own_mounts():
        pytest.skip("only root may mount")
    with embedded_redis(tmp_path) as made, running_api(made) as served, http_client(served.address) as caller:
        (tmp_path / folder).mkdir(exist_ok=True)
        with covered_read_only(tmp_path / folder):
            errors = refused(caller.get("/readyz"), 503, "not-ready")["errors"]
        found = {error["field"]: error["problem"] for error in errors}["disk"]
        assert found == f"the folder {folder} of the data folder cannot be used: Read-only file system"
