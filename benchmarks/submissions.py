"""Submissions of one owner beside others: who begins when, what is stored, and what Redis holds.

    python -m benchmarks.submissions [long_jobs results study] [--python OTHER/.venv/bin/python] [--seconds 150]

Runs `ncp serve` with that Python, as `benchmarks.sharing` does. Each measurement is one function, which returns a line
for the table in sharing.md.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import httpx
import numpy as np
import redis

from benchmarks.sharing import Lab, lab
from ncp_client import Client
from ncp_client.fields import StopFields

OWNERS, JOBS = 20, 2000
LONG_JOBS = 5
QUOTA = 1_000_000
RUNS, LARGE_RUNS = 10_000, 1000
# Of a tensor below the quota: 30,004 × 34 numbers, in three files.
LARGE_SHAPE, LARGE_RANK = (30_000, 2, 2), 34
ENDLESS: StopFields = {"tolerance": 0, "max_iterations": 10**9}


def long_jobs(python: str, seconds: float) -> str:
    """Five long jobs of one owner, then 2,000 small jobs of 20 owners, for two workers."""
    names = [f"owner{number}" for number in range(OWNERS)]
    with lab(python, ("greedy", *names), workers=2) as running:
        with running.client() as greedy:
            tensor = greedy.upload(np.random.default_rng(0).random((60, 60, 60)))
            for seed in range(LONG_JOBS):
                greedy.submit(tensor, rank=8, method="apg", seed=seed, stop=ENDLESS, diagnose=False)
            while len([job for job in greedy.jobs() if job.record["state"] == "running"]) < 2:
                time.sleep(0.1)
        with ThreadPoolExecutor(OWNERS) as owners:
            list(owners.map(lambda name: _submit_small(running, name), names))
            submitted = time.monotonic()
            time.sleep(seconds)
            jobs = list(owners.map(lambda name: list(_jobs(running, name)), names))
        begun = [[job for job in mine if job["started_at"]] for mine in jobs]
        first = [min(_began(job) for job in mine) for mine in begun if mine]
        text = f"{sum(map(len, begun)):,} of {JOBS:,} small jobs of {len(first)} of {OWNERS} owners had begun"
        text += f" {time.monotonic() - submitted:.0f} s after the last submission"
        if first:
            text += (
                f", the first of an owner after {statistics.median(first):.0f} s (median), {max(first):.0f} s (longest)"
            )
        return text


def _submit_small(running: Lab, name: str) -> None:
    with Client(running.address, running.keys[name]) as owner:
        tensor = owner.upload(np.random.default_rng(1).random((10, 10, 10)))
        for seed in range(JOBS // OWNERS):
            owner.submit(tensor, rank=2, method="hals", seed=seed, stop={"max_iterations": 3}, diagnose=False)


def _jobs(running: Lab, name: str) -> Iterator[dict[str, Any]]:
    with _http(running, name) as owner:
        cursor: str | None = None
        while True:
            given = {"limit": 100} | ({} if cursor is None else {"cursor": cursor})
            page = owner.get("/v1/jobs", params=given).raise_for_status().json()
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return


def _began(job: dict[str, Any]) -> float:
    """Return the seconds that a job waited."""
    return (datetime.fromisoformat(job["started_at"]) - datetime.fromisoformat(job["created_at"])).total_seconds()


def results(python: str, seconds: float) -> str:
    """A study of 1,000 runs with 24 MB each, with a quota of 1 MB."""
    with lab(python, ("greedy",), ("--stored-bytes", str(QUOTA)), workers=2) as running, _http(running) as greedy:
        with running.client() as client:
            tensor = client.upload(np.random.default_rng(0).random(LARGE_SHAPE))
        grid = {"kind": "compare", "ranks": [LARGE_RANK], "methods": ["mu"], "repeats": LARGE_RUNS, "diagnose": False}
        body = {**grid, "tensor_id": tensor.id, "stop": {"max_iterations": 1}}
        answer = greedy.post("/v1/studies", json=body)
        if answer.status_code != 202:
            return f"refused with {answer.status_code}: {answer.json()['detail']}"
        time.sleep(seconds)
        stored = greedy.get("/v1/usage").raise_for_status().json()["stored_bytes"]
        return f"accepted; {stored / 1e6:,.0f} MB stored after {seconds:.0f} s"


def study(python: str, seconds: float) -> str:
    """Submission of a study of 10,000 runs, while the only worker is busy."""
    with lab(python, ("greedy",), workers=1) as running, _http(running) as greedy:
        with running.client() as client:
            tensor = client.upload(np.random.default_rng(0).random((60, 60, 60)))
            busy = client.submit(tensor, rank=8, method="apg", stop=ENDLESS, diagnose=False)
            while client.job(busy.id).record["state"] != "running":
                time.sleep(0.1)
        grid = {"kind": "compare", "ranks": list(range(2, 12)), "methods": ["hals"], "repeats": RUNS // 10}
        with redis.Redis(unix_socket_path=str(running.data / "redis" / "redis.sock")) as client_:
            client_.ping()
            before, spent = _used(client_)
            started = time.monotonic()
            greedy.post("/v1/studies", json={**grid, "tensor_id": tensor.id}).raise_for_status()
            answered = time.monotonic() - started
            after, spent_after = _used(client_)
        kilobytes, milliseconds = (after - before) / 1000, (spent_after - spent) / 1000
        return f"{kilobytes:,.0f} kB and {milliseconds:,.1f} ms of Redis; answered after {answered:.2f} s"


def _used(client: "redis.Redis") -> tuple[int, int]:
    """Return the bytes that Redis uses, and the microseconds that its scripts have taken."""
    memory: dict[str, Any] = client.info("memory")
    commands: dict[str, Any] = client.info("commandstats")
    scripts = (commands.get(f"cmdstat_{name}", {"usec": 0})["usec"] for name in ("evalsha", "eval"))
    return memory["used_memory"], sum(scripts)


def _http(running: Lab, name: str = "greedy") -> httpx.Client:
    headers = {"Authorization": f"Bearer {running.keys[name]}"}
    return httpx.Client(base_url=running.address, headers=headers, timeout=600, trust_env=False)


MEASUREMENTS: dict[str, Callable[[str, float], str]] = {
    function.__name__: function for function in (long_jobs, results, study)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", nargs="*", default=list(MEASUREMENTS), choices=list(MEASUREMENTS))
    parser.add_argument("--python", default=sys.executable, help="of the server: that of another version, for example")
    parser.add_argument("--seconds", type=float, default=150.0, help="after which jobs and bytes are counted")
    given = parser.parse_args()
    for name in given.measurements:
        print(f"| {name} | {MEASUREMENTS[name](given.python, given.seconds)} |", flush=True)


if __name__ == "__main__":
    main()
