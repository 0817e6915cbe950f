"""Threads do not change the bits of a result, and BLAS gets its own threads back."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from weakref import ref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from sparse_ncp.solvers import Settings, State, solve, sweeps, synthetic
from sparse_ncp.solvers.tensor import threads as threads_module
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas, split_decreasing
from tests.solvers.problems import planted


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_the_threads_asked_for_really_work_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=20)
    with Threads(3) as threads:
        assert sorted(threads.each(lambda _: together.wait(), range(3))) == [0, 1, 2]


def test_a_thread_that_wakes_late_holds_no_arrays() -> None:
    all_busy, release = threading.Barrier(3, timeout=20), threading.Event()

    def wait(_: int) -> None:
        all_busy.wait()
        release.wait()

    with Threads(2) as threads, ThreadPoolExecutor(1) as other:
        other.submit(threads.each, wait, range(2))
        all_busy.wait()
        array = np.ones(3)
        known = ref(array)
        threads.each(partial(np.multiply, array), range(4))  # by the caller alone
        del array
        is_held = known() is not None
        release.set()
    assert not is_held


def affinity_of_the_other(threads: Threads) -> set[int]:
    """The cores that the one thread of the pool may use."""
    together = threading.Barrier(2, timeout=20)

    def look(_: int) -> tuple[int, set[int]]:
        together.wait()
        return threading.get_ident(), os.sched_getaffinity(0)

    found = dict(threads.each(look, range(2)))
    del found[threading.get_ident()]
    (cores,) = found.values()
    return cores


def test_the_other_thread_leaves_the_callers_core_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calling thread may have been moved to another core in the meantime."""
    cores = os.sched_getaffinity(0)
    with Threads(2) as threads:
        affinity_of_the_other(threads)  # starts it
        for core in sorted(cores):
            monkeypatch.setattr(threads_module, "_libc", lambda core=core: SimpleNamespace(sched_getcpu=lambda: core))
            assert affinity_of_the_other(threads) == (cores - {core} or cores)
    assert os.sched_getaffinity(0) == cores


def test_threads_work_where_the_system_does_not_let_them_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: int, cores: set[int]) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with Threads(2) as threads:
        for _ in range(2):
            assert affinity_of_the_other(threads) == os.sched_getaffinity(0)


def test_outcomes_come_in_the_order_of_the_items() -> None:
    with Threads(3) as threads:
        assert threads.each(lambda item: 2 * item, range(200)) == [2 * item for item in range(200)]


@given(length=st.integers(0, 3000), threads=st.integers(2, 9), unit=st.integers(1, 40))
def test_shrinking_slabs_cover_everything_once_and_are_cut_at_multiples(length: int, threads: int, unit: int) -> None:
    parts = list(split_decreasing(length, threads, unit))
    assert [place for part in parts for place in range(part.start, part.stop)] == list(range(length))
    assert all(part.start % unit == 0 and part.start < part.stop for part in parts)
    assert length < 16 * threads * unit or len(parts) >= 2 * threads


@pytest.mark.parametrize("wrong", [0, 7, 15])
def test_a_piece_that_fails_is_raised_and_leaves_no_thread_at_work(wrong: int) -> None:
    working: list[int] = []

    def work(item: int) -> None:
        if item == wrong:
            raise MemoryError
        working.append(item)
        threading.Event().wait(0.001)
        working.remove(item)

    with Threads(3) as threads:
        with pytest.raises(MemoryError):
            threads.each(work, range(16))
        assert working == []


def test_blas_is_limited_inside_and_restored_after_the_last_solver_leaves() -> None:
    before = blas_threads()
    with single_threaded_blas():
        with single_threaded_blas():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == before


def test_blas_is_limited_by_whichever_thread_solves_and_restored_by_whichever_is_last() -> None:
    """The limit also works if another live thread was the first to set it."""
    before = blas_threads()
    seen: list[set[int]] = []
    inside, leave = threading.Event(), threading.Event()

    def solve_beside() -> None:
        with single_threaded_blas():
            seen.append(blas_threads())
            inside.set()
            leave.wait(20)

    with single_threaded_blas():
        pass
    for _ in range(2):
        beside = threading.Thread(target=solve_beside)
        beside.start()
        inside.wait(20)
        with single_threaded_blas():
            seen.append(blas_threads())
        leave.set()
        beside.join()
        assert blas_threads() == before
    assert seen == [{1}] * 4


def test_every_blas_is_limited_even_if_nothing_has_loaded_it_yet() -> None:
    """Numpy and scipy bring one each; the limit is set up once, perhaps before anything has needed scipy."""
    script = (
        "from sparse_ncp.solvers.tensor.threads import single_threaded_blas\n"
        "with single_threaded_blas(): pass\n"
        "import sparse_ncp.solvers.bcd.loop, threadpoolctl\n"
        "with single_threaded_blas(): print([found['num_threads'] for found in threadpoolctl.threadpool_info()])\n"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert set(json.loads(output)) == {1}


def test_solvers_in_parallel_leave_blas_as_it_was() -> None:
    before, X = blas_threads(), planted(3).tensor
    asked = Settings(rank=3, method="anls-bpp", stop={"max_iterations": 30})
    runs = [threading.Thread(target=solve, args=(X, asked)) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert blas_threads() == before


SCRIPT = """
import hashlib, numpy
from sparse_ncp import solvers
made = solvers.synthetic.planted((30000, 6, 5), 3)
result = solvers.solve(made.tensor, solvers.Settings(rank=40, method={method!r}, stop={{"max_iterations": 2}}))
print(hashlib.sha256(b"".join(A.tobytes() for A in [made.tensor, *result.factors])).hexdigest())
"""


@pytest.mark.parametrize("method", ["mu", "anls-bpp"])
def test_the_threads_of_blas_do_not_show_in_the_bits(method: str) -> None:
    """Long modes, so that even the small products would be worth two threads to BLAS."""
    digests = set()
    for count in ("1", "2"):
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": count}
        command = [sys.executable, "-c", SCRIPT.format(method=method)]
        digests.add(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert len(digests) == 1


RESUME = """
import hashlib, sys, numpy
from sparse_ncp import solvers
X = solvers.synthetic.planted((20, 9, 8), 3).tensor
state = solvers.State.from_bytes(open(sys.argv[1], "rb").read())
*_, last = solvers.sweeps(X, state.settings, resume=state)
print(hashlib.sha256(b"".join(A.tobytes() for A in last.factors)).hexdigest())
"""


def test_a_state_resumes_in_another_process(tmp_path: Path) -> None:
    X = synthetic.planted((20, 9, 8), 3).tensor
    asked = Settings(rank=5, method="apg", rescale=True, beta=0.01, stop={"max_iterations": 20, "tolerance": 0.0})
    states = list(sweeps(X, asked))
    (tmp_path / "state").write_bytes(states[7].to_bytes())
    command = [sys.executable, "-c", RESUME, str(tmp_path / "state")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert output == hashlib.sha256(b"".join(A.tobytes() for A in states[-1].factors)).hexdigest()
    assert isinstance(State.from_bytes(states[7].to_bytes()).factors[0], np.ndarray)


def test_a_process_that_compiles_and_one_that_reads_what_was_compiled_give_the_same_bits(tmp_path: Path) -> None:
    """A kernel that calls another would differ between memory and cache."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT.format(method="anls-bpp")]
    digests, kept = [], []
    for _ in range(2):
        digests.append(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
        kept.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")})
    assert kept[0]
    assert kept[0] == kept[1]  # the second has compiled nothing
    assert digests[0] == digests[1]
