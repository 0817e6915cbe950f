"""The machine signature: it determines last bits, does not depend on imports, and a change of it is recorded."""

import subprocess
import sys

import numpy as np
import pytest

from sparse_ncp.solvers import Result, Settings, sweeps, synthetic
from sparse_ncp.solvers.bcd.state import State
from sparse_ncp.solvers.machine import machine_signature

X = synthetic.planted((8, 7, 6), rank=2).tensor
SETTINGS = Settings(rank=2, method="hals", stop={"max_iterations": 4, "tolerance": 0.0})


def signature_after(statement: str) -> str:
    script = f"{statement}; from sparse_ncp.solvers.machine import machine_signature; print(machine_signature())"
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def test_it_does_not_depend_on_what_was_imported() -> None:
    found = {signature_after(statement) for statement in ("import sys", "import scipy.linalg", "import numba")}
    assert found == {machine_signature()}


def test_processors_that_share_a_name_in_blas_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    from llvmlite import binding

    def signature(processor: str, **features: bool) -> str:
        monkeypatch.setattr(binding, "get_host_cpu_name", lambda: processor)
        monkeypatch.setattr(binding, "get_host_cpu_features", lambda: features)
        return machine_signature.__wrapped__()

    found = [
        signature("znver4", avx512f=True),
        signature("skylake-avx512", avx512f=True),
        signature("znver4", avx512f=True, avx512vnni=True),
        signature("znver4", avx2=True, fma=True),
    ]
    assert len(set(found)) == len(found)
    assert found == [signature("znver4", avx512f=True, gfni=False), *found[1:]]


def test_a_run_resumed_on_another_kind_of_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_, last = sweeps(X, SETTINGS)
    saved = first.to_bytes()
    monkeypatch.setattr("sparse_ncp.solvers.bcd.state.machine_signature", lambda: "another")
    *_, resumed = sweeps(X, SETTINGS, resume=State.from_bytes(saved))
    assert [note for note in Result.of(resumed).warnings if "another kind of machine" in note]
    once_more = next(sweeps(X, SETTINGS, resume=State.from_bytes(saved))).to_bytes()
    *_, again = sweeps(X, SETTINGS, resume=State.from_bytes(once_more))
    assert again.notes == resumed.notes
    assert all(np.array_equal(A, B) for A, B in zip(resumed.factors, last.factors, strict=True))


def test_a_run_resumed_on_the_same_kind_of_machine_has_no_note() -> None:
    first = next(sweeps(X, SETTINGS))
    *_, resumed = sweeps(X, SETTINGS, resume=State.from_bytes(first.to_bytes()))
    assert resumed.machine == machine_signature()
    assert not [note for note in resumed.notes if "machine" in note]
