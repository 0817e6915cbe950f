"""A job that the version before began is resumed to that version's own bits.

`recorded.npz` was written by that version: of every case the state after a few sweeps, and the factors and objectives
of its end. Other processors and compilers round otherwise: there the same numbers are asked for, not the same bits.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from solvers.bcd.loop import sweeps
from solvers.bcd.state import State
from solvers.tensor.products import Array
from solvers.tensor.thin.products import ProductsOfFormat1
from solvers.tensor.threads import Threads
from solvers.tensor.validation import prepare_tensor
from tests.solvers.format_1.cases import CASES, MIDDLE, SAVED_AFTER, machine
from tests.solvers.problems import against_advice

RECORDED = Path(__file__).with_name("recorded.npz")
# Of a few sweeps from the same state, summed in another order.
CLOSE = {"f8": 1e-8, "f4": 1e-3}


@pytest.fixture(scope="module")
def recorded() -> dict[str, NDArray[Any]]:
    with np.load(RECORDED) as stored:
        return dict(stored)


@against_advice
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_state_of_the_version_before_is_resumed_to_its_bits(
    recorded: dict[str, NDArray[Any]], name: str, threads: int
) -> None:
    case = CASES[name]
    state = State.from_bytes(recorded[f"{name}|state"].tobytes())
    assert (state.format, state.iteration) == (1, SAVED_AFTER)
    *_, last = sweeps(case.tensor(), state.settings, resume=state, threads=threads)
    factors = [recorded[f"{name}|A{mode}"] for mode in range(1, len(case.shape) + 1)]
    objective = recorded[f"{name}|objective"]
    assert len(last.history) == len(objective)
    if machine() == str(recorded["machine"]):
        assert np.array_equal(last.history.objective, objective)
        assert all(np.array_equal(A, B) for A, B in zip(last.factors, factors, strict=True))
    np.testing.assert_allclose(last.history.objective, objective, rtol=CLOSE[case.dtype])
    for A, B in zip(last.factors, factors, strict=True):
        np.testing.assert_allclose(A, B, atol=CLOSE[case.dtype] * float(B.max()))


@against_advice
@pytest.mark.parametrize("name", ["hals, three passes", "als, compressed"])
def test_it_may_be_interrupted_again(recorded: dict[str, NDArray[Any]], name: str) -> None:
    X = CASES[name].tensor()
    state = State.from_bytes(recorded[f"{name}|state"].tobytes())
    first, *_, last = sweeps(X, state.settings, resume=state)
    *_, again = sweeps(X, state.settings, resume=State.from_bytes(first.to_bytes()))
    assert again.history.objective == last.history.objective
    assert all(np.array_equal(A, B) for A, B in zip(again.factors, last.factors, strict=True))


def literal_sweep(X: Array, factors: Sequence[Array]) -> Iterator[Array]:
    """The MTTKRPs of a small tensor of order three as that version formed them: components first, all by BLAS."""
    A, B, C = (np.ascontiguousarray(factor.T) for factor in factors)
    matrix = X.reshape(len(X), -1)
    yield (B[:, :, None] * C[:, None, :]).reshape(len(B), -1) @ matrix.T
    partial = (A @ matrix).reshape(-1, *X.shape[1:])
    yield np.matmul(partial, C[:, :, None])[:, :, 0]
    yield np.matmul(B[:, None, :], partial)[:, 0]


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_products_are_formed_as_that_version_did(dtype: str) -> None:
    random = np.random.default_rng(0)
    X, A = random.random((40, 6, 5)).astype(dtype), [random.random((n, 7)).astype(dtype) for n in (40, 6, 5)]
    with Threads(1) as pool:
        tensor = prepare_tensor(X, None, pool, products_of=ProductsOfFormat1)
        found = list(tensor.sweep(A, tensor.first_contraction(A)))
    assert [mode for mode, _ in found] == [0, 1, 2]
    for (_, M), expected in zip(found, literal_sweep(X, A), strict=True):
        assert np.array_equal(M, expected.T.astype(np.float64))


def test_modes_are_swept_from_the_first_on_as_that_version_did() -> None:
    X = np.random.default_rng(0).random(MIDDLE)
    with Threads(1) as pool:
        assert prepare_tensor(X, None, pool, products_of=ProductsOfFormat1).cycle == (0, 1, 2)
        assert prepare_tensor(X, None, pool).cycle == (1, 2, 0)
