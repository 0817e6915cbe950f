"""Time from the submission of a job on a large tensor to its first progress, apart from the computing itself."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx
import numpy as np

from benchmarks.load.figure import Figure, at_most
from tests.support.api import events, finished, http_client, submit
from tests.support.stack import server

SHAPE = (1000, 1000, 500)  # 2 GB of float32
RANK, ROUNDS = 10, 3
REMEMBERED_SECONDS = 2.0


class First(NamedTuple):
    """The first progress: seconds after the submission, computing seconds among them, and the reported steps."""

    seconds: float
    computed: float
    reported_after: float
    steps: tuple[str, ...]


def measure(on_step: Callable[[], object]) -> Iterator[Figure]:
    """Measure a job on a tensor without cached facts, then a second job on the same tensor, in several rounds."""
    with TemporaryDirectory(prefix="ncp-load-") as folder:
        path = Path(folder) / "tensor.npy"
        np.save(path, np.random.default_rng(0).random(SHAPE, np.float32))
        with (
            server(Path(folder), min_free_bytes=0, log_level="warning") as running,
            http_client(running.address) as lab,
        ):
            tensor_id = _upload(lab, path)
            uploaded = _first(lab, tensor_id)
            firsts, seconds = list[First](), list[First]()
            for _ in range(ROUNDS):
                for note in (running.data / "tensors").glob("*.verified"):
                    note.unlink()
                for found in (firsts, seconds):
                    found.append(_first(lab, tensor_id))
                    on_step()
    size = np.prod(SHAPE) * 4 / 1e9
    yield _figure(f"{size:.0f} GB just uploaded: first progress", uploaded)
    slowest = max(firsts, key=lambda first: first.seconds - first.computed)
    yield _figure(f"nothing remembered of {size:.0f} GB: first progress, slowest of {ROUNDS}", slowest)
    yield Figure(
        "the same: first report of its preparation", f"after {slowest.reported_after:.1f} s, {', '.join(slowest.steps)}"
    )
    again = max(seconds, key=lambda first: first.seconds - first.computed)
    yield _figure(f"a second job on it: first progress, slowest of {ROUNDS}", again)
    own = again.seconds - again.computed
    yield at_most("of that beside the run's own computing", own, REMEMBERED_SECONDS, "s")


def _figure(subject: str, first: First) -> Figure:
    return Figure(subject, f"after {first.seconds:.1f} s, {first.computed:.1f} s of them computing")


def _upload(lab: httpx.Client, path: Path) -> str:
    with path.open("rb") as file:
        answer = lab.post("/v1/tensors", content=iter(lambda: file.read(1 << 20), b""), timeout=600)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _first(lab: httpx.Client, tensor_id: str) -> First:
    started = time.perf_counter()
    job_id = submit(lab, tensor_id, rank=RANK, diagnose=False, stop={"max_iterations": 2})["id"]
    reported, steps = float("nan"), dict[str, None]()
    for sent in events(lab, job_id):
        if sent.kind == "preparing":
            reported = reported if steps else time.perf_counter() - started
            steps[sent.content["step"]] = None
        if sent.kind == "progress":
            break
    first = First(time.perf_counter() - started, sent.content["seconds"], reported, tuple(steps))
    finished(lab, job_id, 600)
    return first
