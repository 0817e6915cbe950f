"""Before the first sweep a run tells how far it is, and can be ended."""

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
def test_how_far_the_first_sweep_is_prepared_is_told_in_order(fields: dict[str, Any], steps: list[str]) -> None:
    told: list[tuple[str, float]] = []
    states = sweeps(X, asked(**fields), on_prepare=lambda *what: told.append(what))
    next(states)
    assert list(dict.fromkeys(step for step, _ in told)) == steps
    assert told == sorted(told, key=lambda what: (steps.index(what[0]), what[1]))
    before = len(told)
    next(states)
    assert len(told) == before


class Enough(Exception):
    pass


@pytest.mark.parametrize("fields", [fields for fields, _ in PREPARATIONS])
def test_whoever_hears_how_far_it_is_may_end_it_at_any_step(fields: dict[str, Any]) -> None:
    threads, told = threading.active_count(), list[object]()
    next(sweeps(X, asked(**fields), threads=2, on_prepare=lambda *what: told.append(what)))
    for number in range(1, len(told) + 1):
        heard = count(1)

        def report(*_: object, heard: Iterator[int] = heard, number: int = number) -> None:
            if next(heard) == number:
                raise Enough

        with pytest.raises(Enough):
            next(sweeps(X, asked(**fields), threads=2, on_prepare=report))
        assert threading.active_count() == threads


def test_a_start_from_singular_vectors_is_told_of_in_every_round() -> None:
    told: list[float] = []
    next(sweeps(X, asked(accelerate="none", init="nndsvd"), on_prepare=lambda _, share: told.append(share)))
    assert len(set(told)) > SVD_ITERATIONS


def test_a_copy_in_single_precision_is_told_of_part_after_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "COPIED_AT_ONCE", 1 << 10)
    told: list[float] = []
    with Threads(1) as pool:
        tensor = prepare_tensor(X, None, pool)
        copy = tensor.in_single_precision(told.append)
    assert len(told) == -(-X.size // (1 << 10))
    assert told == sorted(told)
    assert np.array_equal(copy.stored, tensor.stored.astype(np.float32))
