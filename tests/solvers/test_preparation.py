"""Before the first sweep a run reports its progress, and can be ended."""

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import Settings, sweeps, synthetic
from sparse_ncp.solvers.bcd.starts.initial import SVD_ITERATIONS
from sparse_ncp.solvers.settings import Accelerate
from sparse_ncp.solvers.tensor import dense
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.tensor.validation import prepare_tensor
from tests.solvers.problems import accelerated

AUTO = {"beta": 0.0, "penalty": "l1", "sparsity": "auto"}
X = synthetic.planted((60, 50, 40), rank=3, snr_db=40.0).tensor


def asked(accelerate: Accelerate, method: str = "anls-bpp", **fields: Any) -> Settings:
    return accelerated(method, accelerate, **fields)


PREPARATIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({"accelerate": "compress"}, ["scan", "start", "compress", "sweep"]),
    ({"accelerate": "none"}, ["scan", "start", "sweep"]),
    ({"accelerate": "none", "init": "nndsvd"}, ["scan", "start", "sweep"]),
    ({"accelerate": "float32"}, ["scan", "start", "single", "sweep"]),
    ({"accelerate": "auto", "method": "mu"}, ["scan", "start", "single", "sweep"]),
    ({"accelerate": "compress", **AUTO}, ["scan", "weights", "start", "compress", "sweep"]),
]


@pytest.mark.parametrize(("fields", "steps"), PREPARATIONS)
def test_how_far_the_first_sweep_is_prepared_is_reported_in_order(fields: dict[str, Any], steps: list[str]) -> None:
    calls: list[tuple[str, float]] = []
    states = sweeps(X, asked(**fields), on_prepare=lambda *what: calls.append(what))
    next(states)
    assert list(dict.fromkeys(step for step, _ in calls)) == steps
    assert calls == sorted(calls, key=lambda what: (steps.index(what[0]), what[1]))
    before = len(calls)
    next(states)
    assert len(calls) == before


class Enough(Exception):
    pass


@pytest.mark.parametrize("fields", [fields for fields, _ in PREPARATIONS])
def test_the_callback_may_end_it_at_any_step(fields: dict[str, Any]) -> None:
    threads, calls = threading.active_count(), list[object]()
    next(sweeps(X, asked(**fields), threads=2, on_prepare=lambda *what: calls.append(what)))
    for number in range(1, len(calls) + 1):
        heard = count(1)

        def report(*_: object, heard: Iterator[int] = heard, number: int = number) -> None:
            if next(heard) == number:
                raise Enough

        with pytest.raises(Enough):
            next(sweeps(X, asked(**fields), threads=2, on_prepare=report))
        assert threading.active_count() == threads


def test_a_start_from_singular_vectors_reports_every_round() -> None:
    calls: list[float] = []
    next(sweeps(X, asked(accelerate="none", init="nndsvd"), on_prepare=lambda _, share: calls.append(share)))
    assert len(set(calls)) > SVD_ITERATIONS


def test_a_copy_in_single_precision_reports_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "COPIED_AT_ONCE", 1 << 10)
    calls: list[float] = []
    with Threads(1) as pool:
        tensor = prepare_tensor(X, None, pool)
        copy = tensor.in_single_precision(calls.append)
    assert len(calls) == -(-X.size // (1 << 10))
    assert calls == sorted(calls)
    assert np.array_equal(copy.stored, tensor.stored.astype(np.float32))
