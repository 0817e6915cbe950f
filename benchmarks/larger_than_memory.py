"""A file of four times the memory: how often each pass reads it, and at what share of the speed of `dd`.

    python -m benchmarks.larger_than_memory [folder] [--gigabytes 3] [--sweeps 4] [--shapes middle]

The limit is a control group's, which only an administrator may make. Without one the file is streamed all the same, but
the system keeps it in memory: then the speed says nothing about the disk, and the output says so.
"""

import argparse
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.report import markdown
from solvers import Settings, diagnose, sweeps
from solvers.tensor.dense import Positive, Tensor
from solvers.tensor.scan import scan
from solvers.tensor.thin import file_entries
from solvers.tensor.threads import Threads, single_threaded_blas

RANK = 10
SHARE = 4  # the tensor is so many times the limit
SHAPES = {"long rows": (-1, 1000, 500), "short rows": (-1, 20, 25), "middle": (9, -1, 42)}
GROUPS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))


@contextmanager
def limited(limit: int) -> Iterator[Path | None]:
    """A control group with this limit of memory; None where there can be none."""
    for root, name in GROUPS:
        group = Path(root, f"ncp-benchmark-{os.getpid()}")
        if not Path(root, "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(limit))
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    yield None


class Pass(NamedTuple):
    """Seconds, and how often the tensor was read: as asked for by calls that read, and as the disk was asked."""

    name: str
    seconds: float
    asked: float
    disk: float


def measure(path: Path, group: Path | None, count: int, answers: Any) -> None:
    """In a process of its own: `dd`, then the passes that a job makes: the scan, sweeps, a residual, the diagnosis."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    else:
        file_entries.memory_bytes = lambda: 1
    answers.put(list(_passes(path, count)))


def _passes(path: Path, count: int) -> Iterator[Pass]:
    """The sweeps after the first, as one: their average."""
    tensor: NDArray[np.float32] = np.load(path, mmap_mode="r")

    def timed(name: str, work: Callable[[], object], times: int = 1) -> Pass:
        begun, before = time.perf_counter(), _read_bytes()
        work()
        seconds, after = time.perf_counter() - begun, _read_bytes()
        asked, disk = ((now - then) / times / tensor.nbytes for now, then in zip(after, before, strict=True))
        return Pass(name, seconds / times, asked, disk)

    command = ["dd", f"if={path}", "of=/dev/null", "bs=8M"]
    yield timed("dd", lambda: subprocess.run(command, check=True, stderr=subprocess.DEVNULL))
    with Threads() as pool, single_threaded_blas():
        yield timed("scan", lambda: scan(tensor, pool))
    asked = Settings(rank=RANK, method="hals", stop={"tolerance": 0.0, "max_iterations": count + 1}, diagnose=False)
    states = sweeps(tensor, asked)
    *_, state = islice(states, 1)
    yield timed("sweep", lambda: deque(islice(states, count), maxlen=0), count)
    factors = list(state.factors)
    with Threads() as pool, single_threaded_blas():
        whole = Tensor(tensor, state.tensor_norm, Positive(state.tensor_norm, 1.0), pool)
        yield timed("residual", lambda: whole.squared_residual(factors))
    yield timed("diagnosis", lambda: diagnose(tensor, factors))


def _read_bytes() -> tuple[int, int]:
    """What this process has asked to be read from files, and what was read from the disk for it, maps included."""
    lines = Path("/proc/self/io").read_text().splitlines()
    found = dict(line.split(": ") for line in lines)
    return int(found["rchar"]), int(found["read_bytes"])


def _file(folder: Path, shape: tuple[int, ...], order: str, size: int) -> Path:
    """Random numbers of about this size, written in parts."""
    known = int(np.prod([length for length in shape if length > 0]))
    lengths = tuple(size // 4 // known if length < 0 else length for length in shape)
    path = folder / "tensor.npy"
    _write_numbers(path, lengths, order == "F")
    with path.open("rb") as file:  # what was written is still in memory, and would be read from there
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def _write_numbers(path: Path, lengths: tuple[int, ...], fortran: bool) -> None:
    """On return nothing maps the file any more: what is mapped stays in memory."""
    array = np.lib.format.open_memmap(path, "w+", np.float32, lengths[::-1] if fortran else lengths, fortran)
    flat = (array.T if fortran else array).reshape(-1)
    random = np.random.default_rng(0)
    for start in range(0, flat.size, 1 << 24):
        part = flat[start : start + (1 << 24)]
        part[:] = random.random(part.size, np.float32)
    array.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path, help="on the disk to be measured; the system's temporary one")
    parser.add_argument("--gigabytes", type=float, default=3)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--sweeps", type=int, default=4)
    asked = parser.parse_args()
    size, rows, is_limited = int(asked.gigabytes * 2**30), [], True
    context = multiprocessing.get_context("spawn")
    for name, order in tqdm(list(product(asked.shapes, ("C", "F")))):
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder, limited(size // SHARE) as group:
            path, answers = _file(Path(folder), SHAPES[name], order, size), context.Queue()
            is_limited = is_limited and group is not None
            child = context.Process(target=measure, args=(path, group, asked.sweeps, answers))
            child.start()
            passes: list[Pass] = answers.get()
            child.join()
        copied = passes[0].seconds
        for found in passes:
            reads = max(found.asked, found.disk)
            speed = reads * copied / found.seconds if reads else 1.0
            figures = (f"{number:.2f}" for number in (found.asked, found.disk, found.seconds, speed))
            rows.append([name, order, found.name, *figures])
            tqdm.write(" ".join(rows[-1]))
    if not is_limited:
        print("No control group could be made: the memory was not limited, and the file was read from memory.\n")
    print(
        markdown(["shape", "order", "pass", "tensors asked for", "tensors from the disk", "s", "speed, of dd's"], rows)
    )


if __name__ == "__main__":
    main()
