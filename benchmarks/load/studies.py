"""A thousand fits of a small tensor as one study, from the request to the end of the last run."""

import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from benchmarks.load.figure import Figure, at_most
from sparse_ncp.solvers import Settings, solve, synthetic
from sparse_ncp.solvers.tensor.threads import available_cores
from sparse_ncp.worker.contract import TERMINAL
from tests.support.stack import server

SHAPE, RANK, SWEEPS = (20, 15, 12), 3, 20
GRID: dict[str, Any] = {
    "kind": "compare",
    "ranks": [2, 3, 4, 5, 6],
    "methods": ["hals", "anls-bpp"],
    "betas": [0.0, 0.1],
    "repeats": 50,
    "stop": {"max_iterations": SWEEPS, "tolerance": 0.0},
}
RUNS = 1_000
MOST_SECONDS = 20.0
POLL_SECONDS = 0.1
# Runs whose fit alone is timed: every so many, for comparison.
EVERY = 10


def measure(on_step: Callable[[], object]) -> Iterator[Figure]:
    tensor = synthetic.planted(SHAPE, rank=RANK).tensor
    with (
        tempfile.TemporaryDirectory(prefix="ncp-load-") as folder,
        server(Path(folder), "--workers", str(available_cores()), threads=1, log_level="warning") as running,
        httpx.Client(base_url=running.address, timeout=60) as lab,
    ):
        content = io.BytesIO()
        np.save(content, tensor, allow_pickle=False)
        stored = lab.post("/v1/tensors", content=content.getvalue()).raise_for_status().json()["id"]
        before = _processor_seconds(running.process.pid)
        accepted, ended = _study(lab, {**GRID, "tensor_id": stored})
        computed = _processor_seconds(running.process.pid) - before
        on_step()
        started = time.perf_counter()
        lab.get(f"/v1/studies/{ended['id']}/table").raise_for_status()
        table = time.perf_counter() - started
        jobs = lab.get("/v1/jobs", params={"study_id": ended["id"], "limit": 500}).raise_for_status().json()["items"]
    alone = [_seconds_alone(tensor, job["settings"]) for job in jobs[::EVERY]]
    on_step()
    shape = "×".join(map(str, SHAPE))
    subject = f"{RUNS:,} fits of a {shape} tensor, {SWEEPS} sweeps each, as one study, {available_cores()} workers"
    yield at_most(subject, ended["took"], MOST_SECONDS, "s")
    each = f"{1000 * computed / RUNS:.1f} ms"
    yield Figure("processor time of each: API, Redis and workers, from the request to the end", each)
    fit = f"{1000 * statistics.median(alone):.1f} ms"
    yield Figure("processor time of the same fit alone, by `solve`, median", fit)
    yield Figure("until the request was answered: all runs recorded", f"{accepted:.2f} s")
    yield Figure("its table, read first", f"{table:.2f} s")


def _study(lab: httpx.Client, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return the seconds until the study was accepted, and its final record."""
    started = time.perf_counter()
    made = lab.post("/v1/studies", json=body).raise_for_status().json()
    accepted = time.perf_counter() - started
    while True:
        [study] = lab.get("/v1/studies", params={"limit": 1}).raise_for_status().json()["items"]
        if study["state"] in TERMINAL:
            took = time.perf_counter() - started
            assert study["runs"]["succeeded"] == RUNS, study["runs"]
            return accepted, {"id": made["id"], "took": took}
        time.sleep(POLL_SECONDS)


def _seconds_alone(tensor: Any, settings: dict[str, Any]) -> float:
    wanted = Settings.model_validate(settings)
    started = time.process_time()
    solve(tensor, wanted, threads=1)
    return time.process_time() - started


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its descendants, including those that have ended."""
    server = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:4]) for process in (server, *server.children(recursive=True)))
