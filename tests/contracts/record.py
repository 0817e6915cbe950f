"""Record a small data folder, for the tests that a later release still reads it.

python -m tests.contracts.record tests/contracts/recorded/LAYOUT.tar.gz
"""

import hashlib
import json
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from sparse_ncp.solvers import Settings, State, Stop, sweeps
from sparse_ncp.worker.contract import Axis, Event, JobResult, Source
from sparse_ncp.worker.store.local import LocalStore
from sparse_ncp.worker.store.store import Store
from tests.support.jobs import npy, random_tensor, row

TENSOR = random_tensor(4, 5, 6)
GAPS = np.where(random_tensor(3, 4, 5) > 0.5, random_tensor(3, 4, 5), np.nan).astype(np.float32)
SUMMARY = b'{"recorded": true}'
ROWS = [row(n) for n in range(1, 8)]
CHANGES = [Event(id="0-1", kind="state", payload="{}"), Event(id="7-1", kind="end", payload="")]


def states() -> list[State]:
    """The states of a short run, which the recorded jobs have reached."""
    settings = Settings(rank=2, method="apg", stop=Stop(max_iterations=5, tolerance=0))
    return list(sweeps(TENSOR, settings))


def source() -> Source:
    """The labelled tensor of the recorded jobs."""
    axes = [Axis(name=f"mode {n}", unit="nm", values=list(range(length))) for n, length in enumerate(TENSOR.shape)]
    return Source(sha256=hashlib.sha256(npy(TENSOR)).hexdigest(), axes=axes)


def fill(store: Store) -> None:
    """Store two tensors, a finished job, a finished run of a study and a job that was interrupted."""
    for array in (TENSOR, GAPS):
        with store.upload() as upload:
            upload.write(npy(array))
            sha256, _ = upload.keep()
        store.save_summary(sha256, SUMMARY)
    found = states()
    ended, run, interrupted = store.job("ended"), store.deferred().job("run"), store.job("interrupted")
    for job in (ended, run, interrupted):
        job.save_source(source())
    for job in (ended, run):
        job.save_factors(1, found[-1], JobResult.from_state(found[-1]))
        job.save_history(ROWS, CHANGES)
    store.flush()
    for state in found[1:3]:
        interrupted.save_checkpoint(1, state)


def digests(store: Store) -> dict[str, list[str]]:
    """The digests of the factors of each recorded job."""
    return {
        job: [hashlib.sha256(A.tobytes()).hexdigest() for A in store.job(job).factors()]
        for job in ("ended", "run", "interrupted")
    }


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, tarfile.open(target, "w:gz") as archive:
        store = LocalStore(Path(folder))
        fill(store)
        (Path(folder) / "expected.json").write_text(json.dumps(digests(store)))
        archive.add(folder, arcname=".")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
