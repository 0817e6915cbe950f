"""Extrapolation takes fewer sweeps, never raises the objective, and gives the same bits after resuming."""

from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest

from sparse_ncp.solvers import Settings, State, sweeps, synthetic
from sparse_ncp.solvers.tensor.gemm.blas import BlasGemm
from sparse_ncp.solvers.tensor.gemm.codegen import VECTOR_BYTES
from sparse_ncp.solvers.tensor.gemm.protocol import Gemm
from sparse_ncp.solvers.tensor.gemm.skinny import SkinnyGemm
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.tensor.validation import prepare_tensor
from tests.solvers.literal import mttkrp
from tests.solvers.problems import planted

FIELDS: dict[str, dict[str, Any]] = {
    "exact": {"method": "anls-bpp", "penalty": "l1"},
    "hals": {"method": "hals", "inner_passes": 3},
    "compressed": {"method": "anls-bpp", "penalty": "l1", "accelerate": "compress"},
    "compressed hals": {"method": "hals", "accelerate": "compress"},
}

# Without vectors, products are left to BLAS.
GEMM: Any = SkinnyGemm if VECTOR_BYTES is not None else BlasGemm


def states(X: Array, iterations: int, **fields: Any) -> list[State]:
    stop = {"tolerance": 1e-12, "criterion": "relative_objective", "max_iterations": iterations}
    settings = Settings(**{"rank": 4, "rescale": True, "extrapolate": True, "beta": 0.02, "stop": stop, **fields})
    return list(sweeps(X, settings, threads=1))


@pytest.fixture
def contractions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the contractions of tensors, in order."""
    done: list[str] = []
    for name in ("contract_inner", "contract_outer"):
        product = getattr(GEMM, name)

        def counted(self: Gemm, weights: Array, name: str = name, product: Any = product) -> Any:
            done.append(name)
            return product(self, weights)

        monkeypatch.setattr(GEMM, name, counted)
    return done


@pytest.mark.parametrize("kind", FIELDS)
def test_the_objective_never_rises_and_falls_in_fewer_sweeps(kind: str) -> None:
    X = synthetic.planted((20, 18, 16), 4, snr_db=20, seed=1).tensor
    plain = states(X, 400, extrapolate=False, **FIELDS[kind])
    ahead = states(X, 400, **FIELDS[kind])
    phases = [[s.objective for s in ahead if s.phase == phase] for phase in ("compressed", "exact")]
    for objective in phases:
        assert all(after <= before * (1 + 1e-12) for before, after in pairwise(objective))
    assert ahead[-1].objective <= plain[-1].objective * (1 + 1e-6)
    assert len(ahead) < 0.9 * len(plain)


@pytest.mark.parametrize("kind", FIELDS)
def test_a_run_resumes_to_the_same_bits_from_every_sweep(kind: str) -> None:
    X = planted(3, snr_db=20).tensor
    whole = states(X, 12, **FIELDS[kind])
    for state in whole[:-1:2]:
        *_, last = sweeps(X, state.settings, resume=State.from_bytes(state.to_bytes()), threads=1)
        assert [A.tobytes() for A in last.factors] == [A.tobytes() for A in whole[-1].factors]
        assert last.history.objective == whole[-1].history.objective


def test_a_step_that_is_kept_costs_no_contraction_and_one_that_is_not_costs_two(contractions: list[str]) -> None:
    X = planted(3, snr_db=20).tensor
    stop = {"tolerance": 0.0, "max_iterations": 60}
    settings = Settings(rank=4, method="anls-bpp", penalty="l1", rescale=True, extrapolate=True, stop=stop)
    weights, per_sweep = [], []
    for state in sweeps(X, settings, threads=1):
        weights.append(state.momentum.weight)
        per_sweep.append(len(contractions))
        contractions.clear()
    kept = [count for (before, after), count in zip(pairwise(weights), per_sweep[1:], strict=True) if after > before]
    lost = [count for (before, after), count in zip(pairwise(weights), per_sweep[1:], strict=True) if after < before]
    assert kept
    assert set(kept) == {2}
    assert set(lost) <= {4}


@pytest.mark.parametrize("shape", [(9, 2000, 32), (9, 2, 2000, 32), (5, 7, 2000, 4, 8)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_where_the_middle_is_contracted_first_two_contractions_do_although_factors_are_rescaled(
    shape: tuple[int, ...], order: Literal["C", "F"], contractions: list[str]
) -> None:
    random = np.random.default_rng(0)
    shape = shape if order == "C" else shape[::-1]
    X = np.asarray(random.random(shape), order=order)
    factors = [random.random((length, 3)) for length in shape]
    with Threads(2) as pool:
        tensor = prepare_tensor(X, None, pool)
        assert sorted(tensor.cycle) == list(range(len(shape)))
        assert all(after == (before + 1) % len(shape) for before, after in pairwise(tensor.cycle))
        assert shape[tensor.cycle[0]] == 2000
        for mode, M in tensor.sweep(factors, tensor.first_contraction(factors, tensor.cycle), tensor.cycle):
            np.testing.assert_allclose(M, mttkrp(X, factors, mode), rtol=1e-11)
            factors[mode] = random.random(factors[mode].shape)
    contractions.clear()
    states(X, 5, method="hals", extrapolate=False)
    assert len(contractions) == 2 * 5


def test_the_paper_begins_with_the_first_mode_whatever_the_shape() -> None:
    """A tensor with permuted modes is a different run unless factors are rescaled."""
    random = np.random.default_rng(0)
    X = random.random((9, 2000, 32))
    start = [random.random((length, 3)) for length in X.shape]
    settings = Settings(rank=3, method="anls-bpp", stop={"max_iterations": 1})
    (state,) = sweeps(X, settings, initial=start, threads=1)
    first = mttkrp(X, start, 0)
    G = np.multiply.reduce([A.T @ A for A in start[1:]]) + 1e-6 * np.eye(3)
    gradient = state.factors[0] @ G - first
    assert np.abs(np.minimum(state.factors[0], gradient / np.abs(first).max())).max() < 1e-10
