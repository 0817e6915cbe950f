"""Concurrent submissions, and a queue of ten thousand jobs: claims, lists and fairness."""

import asyncio
import http.client
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import uvloop

from benchmarks.load.figure import Figure, at_most, milliseconds
from benchmarks.load.parts import Front, front
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim, JobError, JobRequest
from sparse_ncp.worker.operations.tensors import TensorOperations
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.jobs import Submission
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.store.local import LocalStore

CLIENTS = 32
SUBMIT_SECONDS, SUBMIT_MILLISECONDS = 10.0, 60.0
OWNERS, SMALL, LARGE = 20, 100, 8_100
CLAIM_MILLISECONDS, LIST_MILLISECONDS = 5.0, 50.0
CLAIMS, LISTS = 1_000, 40
LISTED = ("", "?state=queued", "?state=failed", "?method=mu", "?name=7", "?name=nothing")
LONGEST = "?limit=500"
ENDED = JobError(kind="system", message="ended by the measurement", remedy="none is needed")


def add_tensor(records: ExecutionRecords, configuration: Configuration, owner: str) -> str:
    """Store a small tensor of this owner."""
    store = LocalStore(configuration.data)
    with store.upload() as upload:
        buffer = io.BytesIO()
        np.save(buffer, np.ones((4, 3, 2)))
        upload.write(buffer.getvalue())
        return TensorOperations(records, store).keep(upload, owner).id


def measure_submits(on_step: Callable[[], object]) -> Iterator[Figure]:
    with front() as running:
        tensor = add_tensor(ExecutionRecords.of(running.configuration), running.configuration, "local")
        floor = _bare_writes(running.configuration)
        taken = uvloop.run(_submit_all(running, tensor))
        on_step()
    yield Figure(f"bare durable Redis writes from {CLIENTS} clients, p50 and p99", _p50_p99(floor))
    yield at_most(f"submit from {CLIENTS} clients, p50", milliseconds(taken, 50), SUBMIT_MILLISECONDS, "ms")
    yield Figure(f"submit from {CLIENTS} clients, p99", f"{milliseconds(taken, 99):.1f} ms")
    yield Figure("a submit, in bare durable writes, p50", f"{milliseconds(taken, 50) / milliseconds(floor, 50):.1f}")
    yield Figure("submits a second, all of them durable", f"{len(taken) / SUBMIT_SECONDS:.0f}")


def _p50_p99(seconds: list[float]) -> str:
    return f"{milliseconds(seconds, 50):.1f} and {milliseconds(seconds, 99):.1f} ms"


def _bare_writes(configuration: Configuration) -> list[float]:
    """Return the seconds of bare durable writes, a lower bound for any submission."""
    with connect(configuration) as client, ThreadPoolExecutor(CLIENTS) as pool:

        def write(number: int) -> float:
            started = time.perf_counter()
            client.set("bare", number)
            return time.perf_counter() - started

        return list(pool.map(write, range(100 * CLIENTS)))


async def _submit_all(running: Front, tensor: str) -> list[float]:
    taken: list[float] = []
    until = time.perf_counter() + SUBMIT_SECONDS
    await asyncio.gather(*(_submitter(running, tensor, taken, until) for _ in range(CLIENTS)))
    return taken


async def _submitter(running: Front, tensor: str, taken: list[float], until: float) -> None:
    """Submit jobs one after the other on one connection."""
    body = json.dumps({"tensor_id": tensor, "rank": 2, "method": "hals"}).encode()
    lines = [
        "POST /v1/jobs HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    request = "\r\n".join([*lines, "", ""]).encode() + body
    reader, writer = await asyncio.open_connection(running.host, running.port)
    while (started := time.perf_counter()) < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 202"), head
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        taken.append(time.perf_counter() - started)
    writer.close()


def measure_queue(on_step: Callable[[], object]) -> Iterator[Figure]:
    with front(lease_seconds=600) as running:
        records = ExecutionRecords.of(running.configuration)
        _fill(records, running.configuration)
        on_step()
        lists = {query: _list_seconds(running, query) for query in LISTED}
        longest = _list_seconds(running, LONGEST)
        on_step()
        with connect(running.configuration) as bare:
            seconds, floor, served = _claim_some(records, lambda: bare.set("bare", "written"))
        on_step()
    count = LARGE + SMALL * (OWNERS - 1)
    subject = f"claim, {count:,} jobs of {OWNERS} owners queued"
    yield at_most(f"{subject}, p50", milliseconds(seconds, 50), CLAIM_MILLISECONDS, "ms")
    yield at_most(f"{subject}, p99", milliseconds(seconds, 99), CLAIM_MILLISECONDS, "ms")
    yield Figure("a bare durable write before each claim, p50 and p99", _p50_p99(floor))
    for query, taken in lists.items():
        yield at_most(f"`GET /v1/jobs{query}` of {LARGE:,}, p50", milliseconds(taken, 50), LIST_MILLISECONDS, "ms")
    yield Figure(f"`GET /v1/jobs{LONGEST}`, the longest page, p50", f"{milliseconds(longest, 50):.3g} ms")
    fair = CLAIMS / OWNERS
    found = f"{min(served.values())} to {max(served.values())}"
    even = len(served) == OWNERS and max(served.values()) - min(served.values()) <= 1
    yield Figure(
        f"{CLAIMS:,} claims: jobs served per owner, one has 81 times as many",
        found,
        f"{fair:g}, give or take one",
        even,
    )


def _fill(records: ExecutionRecords, configuration: Configuration) -> None:
    """Queue many jobs of one owner, then a few of each of 19 others."""
    owners = [("local", LARGE), *((f"owner {number}", SMALL) for number in range(1, OWNERS))]
    with ThreadPoolExecutor(8) as pool:
        for owner, count in owners:
            body = JobRequest(rank=2, method="hals", tensor_id=add_tensor(records, configuration, owner))
            bodies = [body.model_copy(update={"name": f"Run {number}"}) for number in range(count)]
            list(pool.map(lambda body, owner=owner: records.jobs.submit_many([Submission(owner, body)]), bodies))


def _list_seconds(running: Front, query: str) -> list[float]:
    connection = http.client.HTTPConnection(running.host, running.port, timeout=30)
    taken = []
    for _ in range(LISTS):
        started = time.perf_counter()
        connection.request("GET", f"/v1/jobs{query}")
        answer = connection.getresponse()
        answer.read()
        taken.append(time.perf_counter() - started)
        assert answer.status == 200, answer.status
    connection.close()
    return taken


def _claim_some(
    records: ExecutionRecords, write: Callable[[], object]
) -> tuple[list[float], list[float], Counter[str]]:
    """Claim jobs with four running at a time, each after a bare durable write, which is a lower bound for a claim."""
    seconds, floor, served, running = [], [], Counter[str](), list[Claim]()
    for _ in range(CLAIMS):
        before = time.perf_counter()
        write()
        started = time.perf_counter()
        claim = records.claims.claim("load")
        seconds.append(time.perf_counter() - started)
        floor.append(started - before)
        assert claim is not None
        served[claim.owner] += 1
        running.append(claim)
        if len(running) == 4:
            records.claims.fail(running.pop(0), ENDED)
    return seconds, floor, served
