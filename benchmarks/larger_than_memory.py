"""Sweeps over a file of four times the memory: how often it is read, and at what share of the speed of `dd`.

    python -m benchmarks.larger_than_memory [folder] [--gigabytes 3] [--sweeps 4]

The limit is a control group's, which only an administrator may make. Without one the file is streamed all the same, but
the system keeps it in memory: then the speed says nothing about the disk, and the output says so.
"""

import argparse
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.report import markdown
from solvers import Settings, sweeps
from solvers.tensor.thin import file_entries

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


def measure(path: Path, group: Path | None, count: int, answers: Any) -> None:
    """In a process of its own: seconds of `dd`, then seconds and bytes read per sweep after the first."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    else:
        file_entries.memory_bytes = lambda: 1
    started = time.perf_counter()
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=8M"], check=True, stderr=subprocess.DEVNULL)
    copied = time.perf_counter() - started
    tensor = np.load(path, mmap_mode="r")
    asked = Settings(rank=RANK, method="hals", stop={"tolerance": 0.0, "max_iterations": count + 1}, diagnose=False)
    states = sweeps(tensor, asked)
    next(states)
    begun, read = time.perf_counter(), _read_bytes()
    swept = sum(1 for _ in islice(states, count))
    answers.put((copied, (time.perf_counter() - begun) / swept, (_read_bytes() - read) / swept / tensor.nbytes))


def _read_bytes() -> int:
    """What this process has asked to be read from files, from memory or from the disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def _file(folder: Path, shape: tuple[int, ...], order: str, size: int) -> Path:
    """Random numbers of about this size, written in parts."""
    known = int(np.prod([length for length in shape if length > 0]))
    lengths = tuple(size // 4 // known if length < 0 else length for length in shape)
    path = folder / "tensor.npy"
    fortran = order == "F"
    array = np.lib.format.open_memmap(path, "w+", np.float32, lengths[::-1] if fortran else lengths, fortran)
    flat = (array.T if fortran else array).reshape(-1)
    random = np.random.default_rng(0)
    for start in range(0, flat.size, 1 << 24):
        part = flat[start : start + (1 << 24)]
        part[:] = random.random(part.size, np.float32)
    array.flush()
    with path.open("rb") as file:  # what was written is still in memory, and would be read from there
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path, help="on the disk to be measured; the system's temporary one")
    parser.add_argument("--gigabytes", type=float, default=3)
    parser.add_argument("--sweeps", type=int, default=4)
    asked = parser.parse_args()
    size, rows, is_limited = int(asked.gigabytes * 2**30), [], True
    context = multiprocessing.get_context("spawn")
    for (name, shape), order in tqdm(list(product(SHAPES.items(), ("C", "F")))):
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder, limited(size // SHARE) as group:
            path, answers = _file(Path(folder), shape, order, size), context.Queue()
            is_limited = is_limited and group is not None
            child = context.Process(target=measure, args=(path, group, asked.sweeps, answers))
            child.start()
            copied, seconds, reads = answers.get()
            child.join()
        figures = (f"{number:.2f}" for number in (reads, seconds, copied, reads * copied / seconds))
        rows.append([name, order, *figures])
        tqdm.write(" ".join(rows[-1]))
    if not is_limited:
        print("No control group could be made: the memory was not limited, and the file was read from memory.\n")
    print(markdown(["shape", "order", "reads per sweep", "s per sweep", "s of dd", "speed, of dd's"], rows))


if __name__ == "__main__":
    main()
