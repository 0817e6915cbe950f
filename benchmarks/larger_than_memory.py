"""Decompose a file four times as large as memory: reads per pass, and speed relative to `dd`.

    python -m benchmarks.larger_than_memory [folder] [--gigabytes 2] [--sweeps 3] [--shapes even ...] [--orders C F]
                                            [--types float32 float64] [--starts]

With `--starts`, also the passes that a start from singular vectors and a compression make. The speed is that of all
bytes of a pass, against the mean of three runs of `dd` in the same group: before, amid and after the passes.

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
from contextlib import contextmanager, suppress
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.report import markdown
from sparse_ncp.solvers import Settings, diagnose, sweeps
from sparse_ncp.solvers.bcd.starts.initial import nndsvd
from sparse_ncp.solvers.tensor.compressed import compress
from sparse_ncp.solvers.tensor.dense import Tensor
from sparse_ncp.solvers.tensor.gemm import out_of_core
from sparse_ncp.solvers.tensor.protocol import Positive
from sparse_ncp.solvers.tensor.scan import scan
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas

RANK = 10
DD = "dd"
SHARE = 4  # the tensor is so many times the limit
SHAPES = {
    "even": (-1, 800, 800),
    "long first": (-1, 100, 100),
    "long last": (100, 100, -1),
    "long middle": (60, -1, 90),
    "order 4": (-1, 150, 150, 150),
}
GROUPS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))


@contextmanager
def limited(limit: int) -> Iterator[Path | None]:
    """Create a control group with this memory limit; None where that is not possible."""
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
    """Seconds of a pass, and how often it read the tensor: by read calls, and from the disk."""

    name: str
    seconds: float
    asked: float
    disk: float


def measure(path: Path, group: Path | None, count: int, starts: bool, answer: Any) -> None:
    """Run `dd` and the passes of a job in a process of its own, which may be killed."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    else:
        out_of_core.memory_bytes = lambda: 1
    for found in _passes(path, count, starts):
        answer.send(found)


def _passes(path: Path, count: int, starts: bool) -> Iterator[Pass]:
    """Average the sweeps after the first."""
    tensor: NDArray[Any] = np.load(path, mmap_mode="r")

    def timed(name: str, work: Callable[[], object], times: int = 1) -> Pass:
        begun, before = time.perf_counter(), _read_bytes()
        work()
        seconds, after = time.perf_counter() - begun, _read_bytes()
        asked, disk = ((now - then) / times / tensor.nbytes for now, then in zip(after, before, strict=True))
        return Pass(name, seconds / times, asked, disk)

    def copied() -> Pass:
        command = ["dd", f"if={path}", "of=/dev/null", "bs=8M"]
        return timed(DD, lambda: subprocess.run(command, check=True, stderr=subprocess.DEVNULL))

    yield copied()
    with Threads() as pool, single_threaded_blas():
        yield timed("scan", lambda: scan(tensor, pool, runs=out_of_core.contiguous_runs))
    asked = Settings(rank=RANK, method="hals", stop={"tolerance": 0.0, "max_iterations": count + 1}, diagnose=False)
    states = sweeps(tensor, asked)
    *_, state = islice(states, 1)
    yield timed("sweep", lambda: deque(islice(states, count), maxlen=0), count)
    yield copied()
    factors = list(state.factors)
    with Threads() as pool, single_threaded_blas():
        whole = Tensor(tensor, state.tensor_norm, Positive(state.tensor_norm, 1.0), pool)
        yield timed("residual", lambda: whole.squared_residual(factors))
        if starts:
            random, widths = np.random.default_rng(0), [np.ones((length, RANK)) for length in tensor.shape]
            yield timed("nndsvd", lambda: nndsvd(whole.gram_times, dict(enumerate(widths)), random))
            yield timed("sketch", lambda: compress(whole, RANK, pool))
    yield timed("diagnosis", lambda: diagnose(tensor, factors))
    yield copied()


def _read_bytes() -> tuple[int, int]:
    """Return the bytes that this process has read by calls, and those read from the disk for it, maps included."""
    lines = Path("/proc/self/io").read_text().splitlines()
    found = dict(line.split(": ") for line in lines)
    return int(found["rchar"]), int(found["read_bytes"])


def _file(folder: Path, shape: tuple[int, ...], order: str, dtype: np.dtype[Any], size: int) -> Path:
    """Write a file of random numbers of about this size, in parts."""
    known = int(np.prod([length for length in shape if length > 0]))
    lengths = tuple(size // dtype.itemsize // known if length < 0 else length for length in shape)
    path = folder / "tensor.npy"
    _write_numbers(path, lengths, dtype, order == "F")
    with path.open("rb") as file:  # what was written is still in memory, and would be read from there
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def _write_numbers(path: Path, lengths: tuple[int, ...], dtype: np.dtype[Any], fortran: bool) -> None:
    """Write random numbers to a `.npy` file, and leave nothing mapped: mapped pages stay in memory."""
    array = np.lib.format.open_memmap(path, "w+", dtype, lengths, fortran)
    flat = (array.T if fortran else array).reshape(-1)
    random = np.random.default_rng(0)
    for start in range(0, flat.size, 1 << 24):
        part = flat[start : start + (1 << 24)]
        part[:] = random.random(part.size, np.float32)
    array.flush()


def _measured(case: tuple[str, str, str], asked: argparse.Namespace) -> tuple[list[Pass], bool]:
    """Measure the passes over a file of this shape, order and type, and return whether memory was limited."""
    name, order, dtype = case
    size, context = int(asked.gigabytes * 2**30), multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder, limited(size // SHARE) as group:
        path = _file(Path(folder), SHAPES[name], order, np.dtype(dtype), size)
        receiver, answer = context.Pipe(duplex=False)
        child = context.Process(target=measure, args=(path, group, asked.sweeps, asked.starts, answer))
        child.start()
        answer.close()
        passes: list[Pass] = []
        with suppress(EOFError):
            while True:
                passes.append(receiver.recv())
        child.join()
    if child.exitcode != 0:
        tqdm.write(f"{' '.join(case)}: killed after {passes[-1].name}, for want of memory")
    return passes, group is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path, help="on the disk to be measured; the system's temporary one")
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--orders", nargs="+", choices=["C", "F"], default=["C", "F"])
    parser.add_argument("--types", nargs="+", choices=["float32", "float64"], default=["float32", "float64"])
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--starts", action="store_true")
    asked = parser.parse_args()
    rows, is_limited = [], True
    for case in tqdm(list(product(asked.shapes, asked.orders, asked.types))):
        passes, was_limited = _measured(case, asked)
        is_limited = is_limited and was_limited
        copied = fmean(found.seconds for found in passes if found.name == DD)
        for found in passes:
            reads = max(found.asked, found.disk)
            speed = reads * copied / found.seconds if reads else 1.0
            figures = (f"{number:.2f}" for number in (found.asked, found.disk, found.seconds, speed))
            rows.append([*case, found.name, *figures])
            tqdm.write(" ".join(rows[-1]))
    if not is_limited:
        print("No control group could be made: the memory was not limited, and the file was read from memory.\n")
    heads = ["shape", "order", "type", "pass", "tensors asked for", "tensors from the disk", "s", "speed, of dd's"]
    print(markdown(heads, rows))


if __name__ == "__main__":
    main()
