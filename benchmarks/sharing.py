"""A modest owner beside a greedy one: p50 and p99 of the modest owner's requests, and memory of the API.

    python -m benchmarks.sharing [exports plots slices study streams] [--python OTHER/.venv/bin/python]

Runs `ncp serve` with that Python, so that another version of the server can be measured with the same clients. While a
greedy owner sends all of its requests at once, the modest one reads a small job every 20 ms over one connection. Each
behaviour is one function: it prepares what the greedy owner needs, and returns its requests.
"""

import argparse
import asyncio
import http.client
import math
import multiprocessing
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

from ncp_client import Client
from tests.support.stack import end_tree

EVERY_SECONDS = 0.02
# Measured before the greedy owner begins, and at most beside it.
QUIET_SECONDS, LONGEST_SECONDS = 3.0, 60.0
# A request that takes longer counts as this.
PATIENCE_SECONDS = 60.0
STREAM_SECONDS = 60.0
MEGABYTE = 1 << 20
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Lab:
    """A running server with a key of each owner."""

    address: str
    keys: Mapping[str, str]
    api: psutil.Process
    data: Path

    def client(self) -> Client:
        return Client(self.address, self.keys["greedy"])


@dataclass(frozen=True)
class Load:
    """Requests of the greedy owner, which are all sent at once."""

    paths: Sequence[str]
    seconds: float = LONGEST_SECONDS


def exports(lab: Lab) -> Load:
    """Twelve different CSV exports of a model of 40 MB."""
    with lab.client() as greedy:
        job = greedy.submit(
            _tensor(greedy, 200_000, 4, 4), rank=25, method="mu", stop={"max_iterations": 1}, diagnose=False
        )
        job.wait()
        kinds = product(("none", "unit", "max"), ("none", "share"), ("keep", "drop"))
        return Load([f"/v1/jobs/{job.id}/factors?format=csv&scale={s}&order={o}&zeros={z}" for s, o, z in kinds])


def plots(lab: Lab) -> Load:
    """Sixty different plots as PNG."""
    with lab.client() as greedy:
        tensor = _tensor(greedy, 40, 30, 20)
        jobs = [
            greedy.submit(tensor, rank=8, method="hals", seed=seed, stop={"max_iterations": 20}) for seed in range(30)
        ]
        for job in jobs:
            job.wait()
        names = ("components", "convergence")
        return Load([f"/v1/jobs/{job.id}/plots/{name}?format=png" for job in jobs for name in names])


def slices(lab: Lab) -> Load:
    """Forty different slices of a tensor of 2 GB, across its entries."""
    with lab.client() as greedy:
        tensor = greedy.upload(np.broadcast_to(np.random.default_rng(0).random((1, 500, 500)), (1000, 500, 500)))
        return Load([f"/v1/tensors/{tensor.id}/slice?fix=3:{index}&max=512" for index in range(0, 400, 10)])


def study(lab: Lab) -> Load:
    """GET of a study of 25 runs of 24 MB each, by ten clients, as soon as its last run has ended."""
    with lab.client() as greedy:
        tensor = _tensor(greedy, 120_000, 4, 4)
        made = greedy.study(
            tensor, "compare", ranks=[25], methods=["mu"], repeats=25, stop={"max_iterations": 1}, diagnose=False
        )
        while sum(1 for _ in made.runs("succeeded")) < 25:
            time.sleep(0.5)
        return Load([f"/v1/studies/{made.id}"] * 10)


def streams(lab: Lab) -> Load:
    """Two thousand event streams on one fast job."""
    with lab.client() as greedy:
        seconds = 3 * STREAM_SECONDS
        job = greedy.submit(
            _tensor(greedy, 5, 5, 5),
            rank=2,
            method="hals",
            stop={"tolerance": 0, "max_iterations": 10**9, "max_seconds": seconds},
        )
        while not greedy.job(job.id).record["progress"]:
            time.sleep(0.1)
        return Load([f"/v1/jobs/{job.id}/events"] * 2000, STREAM_SECONDS)


BEHAVIOURS: dict[str, Callable[[Lab], Load]] = {
    function.__name__: function for function in (exports, plots, slices, study, streams)
}


def _tensor(greedy: Client, *shape: int) -> Any:
    return greedy.upload(np.random.default_rng(1).random(shape))


# The server


@contextmanager
def lab(
    python: str, owners: Sequence[str] = ("greedy", "modest"), limits: Sequence[str] = (), workers: int = 1
) -> Iterator[Lab]:
    """Start `ncp serve` with a key of each owner, and these limits as options of `ncp keys create`."""
    with tempfile.TemporaryDirectory(prefix="ncp-sharing-", dir="/var/tmp") as folder:
        given = {"NCP_DATA": f"{folder}/data", "NCP_PORT": "0", "NCP_LOG_LEVEL": "warning", "NCP_MIN_FREE_BYTES": "1"}
        given |= {"NCP_MAX_STREAMS_PER_OWNER": "2000", "NCP_WORKERS": str(workers)}
        environment = {**os.environ, **given}
        command = [python, "-P", "-m", "sparse_ncp.app.cli.main"]
        keys = {name: _new_key([*command, "keys", "create", name, *limits], environment) for name in owners}
        process = subprocess.Popen([*command, "serve"], env=environment, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            found = re.search(r"ready at (\S+)", process.stdout.readline().decode())
            assert found is not None, "the server did not start"
            children = psutil.Process(process.pid).children()
            api = next(child for child in children if "api" in child.cmdline())
            yield Lab(found[1], keys, api, Path(folder) / "data")
        finally:
            end_tree(process)


def _new_key(command: Sequence[str], environment: dict[str, str]) -> str:
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    found = re.search(r"ncp_[A-Za-z0-9_-]{16,}", printed)
    assert found is not None, printed
    return found[0]


# The modest owner


class Modest:
    """Reads a small job every 20 ms; a late answer counts as if the next requests had been sent in time."""

    def __init__(self, lab: Lab) -> None:
        with Client(lab.address, lab.keys["modest"]) as client:
            tensor = client.upload(np.random.default_rng(2).random((6, 5, 4)))
            self._path = f"/v1/jobs/{client.submit(tensor, rank=2, stop={'max_iterations': 5}).id}"
        self._port = urlsplit(lab.address).port
        self._headers = {"Authorization": f"Bearer {lab.keys['modest']}"}

    def milliseconds(self, seconds: float, until: Callable[[], bool] = lambda: False) -> list[float]:
        """Return the times that requests took."""
        found, started = list[float](), time.monotonic()
        connection = http.client.HTTPConnection(HOST, self._port, timeout=PATIENCE_SECONDS)
        while time.monotonic() < started + seconds and not until():
            sent = time.monotonic()
            try:
                connection.request("GET", self._path, headers=self._headers)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200, answer.status
            except TimeoutError:
                connection.close()
            taken = time.monotonic() - sent
            # Those that would have been sent meanwhile would have waited as well, each for what was left.
            found += [1000 * (taken - late * EVERY_SECONDS) for late in range(max(1, math.ceil(taken / EVERY_SECONDS)))]
            time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - sent)))
        connection.close()
        return found


# The greedy owner, in a process of its own


def be_greedy(port: int, key: str, load: Load, results: Any) -> None:
    """Send all requests at once, and put the number of answers by status; streams are read until the time is over."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results.put(asyncio.run(_all_at_once(port, key, load)))


async def _all_at_once(port: int, key: str, load: Load) -> dict[str, int]:
    tasks = [asyncio.create_task(_request(port, key, path)) for path in load.paths]
    done, late = await asyncio.wait(tasks, timeout=load.seconds)
    for task in late:
        task.cancel()
    counts = Counter(task.result() for task in done if task.exception() is None)
    failed = sum(task.exception() is not None for task in done)
    return dict(Counter({**counts, "open at the end": len(late), "failed": failed}))


async def _request(port: int, key: str, path: str) -> str:
    """Return the status of an answer that was read to its end, which is not kept. Come again if it was too fast."""
    reader, writer = await asyncio.open_connection(HOST, port)
    head = f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    status = (await reader.readline()).split()[1].decode()
    rest = b"."
    while rest and status != "429":
        rest = await reader.read(MEGABYTE)
    writer.close()
    if status == "429":
        await asyncio.sleep(random.uniform(0, 20))
        return await _request(port, key, path)
    return status


# Measuring


@dataclass(frozen=True)
class Row:
    """Measurements beside one greedy owner."""

    behaviour: str
    quiet: Sequence[float]
    beside: Sequence[float]
    seconds: float
    megabytes: float
    answers: dict[str, int]

    def __str__(self) -> str:
        answers = ", ".join(f"{count} × {status}" for status, count in sorted(self.answers.items()) if count)
        percentiles = " | ".join(
            f"{_percentile(times, q):.0f}" for times in (self.quiet, self.beside) for q in (50, 99)
        )
        others = f"{max(self.beside):.0f} | {self.megabytes:.0f} | {self.seconds:.0f}"
        return f"| {self.behaviour} | {percentiles} | {others} | {answers} |"


HEADER = """| greedy owner | p50 alone | p99 alone | p50 beside | p99 beside | longest | API, MB | seconds | answers |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def measure(behaviour: str, python: str) -> Row:
    """Measure one behaviour on a new server."""
    with lab(python) as running:
        modest, load = Modest(running), BEHAVIOURS[behaviour](running)
        quiet = modest.milliseconds(QUIET_SECONDS)
        port, context = urlsplit(running.address).port, multiprocessing.get_context("spawn")
        results = context.Queue()
        greedy = context.Process(target=be_greedy, args=(port, running.keys["greedy"], load, results))
        Path(f"/proc/{running.api.pid}/clear_refs").write_text("5")  # from here on VmHWM is the largest size
        greedy.start()
        started = time.monotonic()
        beside = modest.milliseconds(load.seconds + PATIENCE_SECONDS, lambda: not results.empty())
        seconds = time.monotonic() - started
        answers = results.get()
        greedy.join()
        return Row(behaviour, quiet, beside, seconds, _largest_megabytes(running.api), answers)


def _largest_megabytes(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) / 1024  # type: ignore[index]


def _percentile(times: Sequence[float], q: int) -> float:
    return statistics.quantiles(times, n=100)[q - 1] if len(times) > 1 else times[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("behaviours", nargs="*", default=list(BEHAVIOURS), choices=list(BEHAVIOURS))
    parser.add_argument("--python", default=sys.executable, help="of the server: that of another version, for example")
    given = parser.parse_args()
    print(HEADER, flush=True)
    for behaviour in given.behaviours:
        print(measure(behaviour, given.python), flush=True)


if __name__ == "__main__":
    main()
