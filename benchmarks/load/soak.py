"""Ten minutes of dense ordinary use, to see whether memory, handles, keys or files grow."""

import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import psutil

from benchmarks.load.figure import Figure, at_most
from sparse_ncp.worker.records.redis.connection import connect
from tests.support.api import events, finished, http_client, planted, upload
from tests.support.processes import configuration_of, part
from tests.support.stack import Server, server

CALLERS = 4
# By then pools, caches and allocators have their size.
WARM_SHARE = 0.3
FLAT_MEGABYTES, FLAT_KEYS, FLAT_HANDLES = 16.0, 60.0, 8.0
METHODS = ("hals", "mu", "apg", "anls-bpp", "als", "anls-as")


@dataclass(frozen=True)
class Sample:
    """One sample of memory, handles, keys and files."""

    megabytes: dict[str, float]
    handles: dict[str, float]
    keys: float
    files: float


def measure(on_step: Callable[[], object], seconds: float) -> Iterator[Figure]:
    """Use the server for some seconds, calling `on_step` once a second, and measure what has grown."""
    with TemporaryDirectory(prefix="ncp-soak-") as folder:
        settings = {"stream_seconds": 5, "checkpoint_seconds": 0.5, "tidy_seconds": 5, "idempotency_hours": 0.002}
        with server(Path(folder), min_free_bytes=0, log_level="warning", **settings) as running:
            rounds, samples = _use(running, seconds, on_step)
    yield Figure(f"rounds of upload, submit, watch, download, delete in {seconds:.0f} s", f"{rounds:,}")
    for name in samples[0].megabytes:
        yield _growth(f"memory of the {name}", [sample.megabytes[name] for sample in samples], FLAT_MEGABYTES, "MB")
    for name in samples[0].handles:
        yield _growth(f"file handles of the {name}", [sample.handles[name] for sample in samples], FLAT_HANDLES, "")
    yield _growth("keys in Redis", [sample.keys for sample in samples], FLAT_KEYS, "")
    yield _growth("files in the data folder", [sample.files for sample in samples], FLAT_KEYS, "")


def _growth(subject: str, values: list[float], limit: float, unit: str) -> Figure:
    """Compare the median of the last tenth of the samples with that of a tenth after warming up."""
    tenth, warm = max(1, len(values) // 10), int(len(values) * WARM_SHARE)
    before, after = median(values[warm : warm + tenth]), median(values[-tenth:])
    return at_most(f"{subject}: growth from {before:.0f}", after - before, limit, unit)


def _use(running: Server, seconds: float, on_step: Callable[[], object]) -> tuple[int, list[Sample]]:
    ended, rounds, failures = threading.Event(), [0] * CALLERS, list[BaseException]()

    def call(number: int) -> None:
        try:
            with http_client(running.address) as lab:
                while not ended.is_set():
                    _round(lab, number, rounds[number])
                    rounds[number] += 1
        except BaseException as failure:
            failures.append(failure)
            raise

    callers = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for caller in callers:
        caller.start()
    samples, until = [], time.monotonic() + seconds
    while time.monotonic() < until and not failures:
        samples.append(_sample(running))
        time.sleep(1)
        on_step()
    ended.set()
    for caller in callers:
        caller.join()
    assert not failures, failures
    return sum(rounds), samples


def _round(lab: httpx.Client, number: int, turn: int) -> None:
    """Do what a script in a lab does; some rounds cancel, send an invalid tensor, or stop watching early."""
    tensor = upload(lab, planted(12, 10, 8, seed=number * 1_000_003 + turn))["id"]
    fields = {"method": METHODS[turn % len(METHODS)], "stop": {"max_iterations": 30}}
    headers = {"Idempotency-Key": f"{number} {turn}"}
    answer = lab.post("/v1/jobs", json={"tensor_id": tensor, "rank": 3, **fields}, headers=headers)
    job = answer.raise_for_status().json()["id"]
    if turn % 5 == 0:
        lab.post(f"/v1/jobs/{job}/cancel").raise_for_status()
        assert lab.post("/v1/tensors", content=b"nonsense").status_code == 422
    elif turn % 5 == 1:
        next(iter(events(lab, job)))
    else:
        assert list(events(lab, job))[-1].kind == "end"
    state = finished(lab, job)["state"]
    if state == "succeeded":
        with np.load(_bytes(lab, f"/v1/jobs/{job}/factors")) as factors:
            assert factors["A1"].shape == (12, 3)
        assert len(lab.get(f"/v1/jobs/{job}/history").raise_for_status().json()) > 0
    lab.delete(f"/v1/jobs/{job}").raise_for_status()
    lab.delete(f"/v1/tensors/{tensor}").raise_for_status()


def _bytes(lab: httpx.Client, path: str) -> io.BytesIO:
    return io.BytesIO(lab.get(path).raise_for_status().content)


def _sample(running: Server) -> Sample:
    parts = {name: _tree(part(running, name)) for name in ("api", "worker", "valkey")}
    with connect(configuration_of(running)) as records:
        keys = float(records.dbsize())
    return Sample(
        megabytes={name: sum(one.memory_info().rss for one in tree) / 1e6 for name, tree in parts.items()},
        handles={name: float(sum(one.num_fds() for one in tree)) for name, tree in parts.items()},
        keys=keys,
        files=float(sum(len(names) for _, _, names in os.walk(running.data))),
    )


def _tree(process: psutil.Process) -> list[psutil.Process]:
    """Return a part and its pool, without the processes of jobs, which come and go."""
    return [process, *process.children()]
