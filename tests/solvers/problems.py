"""Small planted problems, and the measures that the tests use."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from numpy.typing import NDArray

from sparse_ncp.solvers import METHODS, Result, Settings, solve, synthetic
from sparse_ncp.solvers.bcd.penalties import given_weights
from sparse_ncp.solvers.bcd.problem import Problem, resolve
from sparse_ncp.solvers.settings import Accelerate
from sparse_ncp.solvers.tensor.products import Array, Float64
from tests.solvers import literal

Variant: TypeAlias = dict[str, Any]
Layout: TypeAlias = Callable[[Float64], NDArray[Any]]  # the same entries, stored otherwise

# The paper's HALS runs with β > 0 as it is written, against our advice; its own test is in runs/test_warnings.py.
against_advice = pytest.mark.filterwarnings("ignore:hals as in the paper:sparse_ncp.AdviceWarning")

SHAPES: dict[int, tuple[int, ...]] = {2: (12, 9), 3: (9, 7, 5), 4: (6, 5, 4, 3), 5: (5, 4, 3, 3, 2)}

# Every option that changes the path of a method: the variants that resume, determinism and promises are tested on.
VARIANTS: list[Variant] = [
    *({"method": method} for method in METHODS),
    *({"method": method, "beta": 0.05} for method in METHODS),
    *({"method": method, "beta": 0.05, "rescale": True} for method in METHODS),
    *({"method": method, "beta": 0.05, "penalty": "l1_squared", "rescale": True} for method in METHODS),
    *({"method": method, "beta": 0.05, "inner_passes": 4} for method in ("mu", "hals", "apg")),
    {"method": "hals", "normalise": False, "beta": 0.05},
    {"method": "apg", "delta_omega": 0.5, "beta": 0.05},
    {"method": "apg", "inner_passes": 5, "rescale": True, "beta": 0.05},
    {"method": "anls-as", "penalty": "l1", "beta": 0.05},
    {"method": "anls-bpp", "penalty": "l1", "beta": 0.05},
]


def name_of(variant: Variant) -> str:
    return "-".join(str(value) for value in variant.values())


def examples(count: int) -> int:
    """Return the number of examples of a property test: `count` where the profile has hypothesis's usual 100."""
    return max(1, count * hypothesis_settings().max_examples // 100)


def planted(order: int = 3, rank: int = 3, seed: int = 0, snr_db: float = 30.0) -> synthetic.Synthetic:
    return synthetic.planted(SHAPES[order], rank, snr_db=snr_db, seed=seed)


def start(shape: Sequence[int], rank: int, seed: int = 0) -> list[Float64]:
    """Positive factors, so that no method begins with a dead component."""
    random = np.random.default_rng(seed)
    return [random.random((length, rank)) + 0.1 for length in shape]


def run(
    X: NDArray[Any],
    *,
    iterations: int = 20,
    threads: int = 1,
    initial: Sequence[NDArray[Any]] | None = None,
    **fields: Any,
) -> Result:
    stop = {"max_iterations": iterations, "tolerance": 0.0}
    return solve(X, Settings(**{"rank": 4, "stop": stop, **fields}), initial=initial, threads=threads)


def problem_of(settings: Settings, order: int) -> Problem:
    """The problem of settings that give their weights in numbers."""
    return resolve(settings, given_weights(settings, order))


def is_squared(settings: Settings) -> bool:
    return (settings.penalty or METHODS[settings.method].penalty) == "l1_squared"


def per_mode(value: float | tuple[float, ...], order: int) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,) * order


def gradients(X: Float64, factors: Sequence[Array], settings: Settings) -> Iterator[Float64]:
    """∂O/∂Aⁿ for every mode, from the definition."""
    problem = literal.Literal(
        X,
        [A.astype(np.float64) for A in factors],
        per_mode(settings.alpha, X.ndim),
        per_mode(settings.beta, X.ndim),
        is_squared(settings),
    )
    for n, A in enumerate(factors):
        Q, M, beta = problem.subproblem(n)
        yield A @ Q - M + beta


def kkt_residual(X: Float64, factors: Sequence[Array], settings: Settings) -> float:
    """Return the distance from a stationary point of O over A ≥ 0, min(A, gradient), for balanced components."""
    worst = 0.0
    for A, gradient in zip(factors, gradients(X, factors, settings), strict=True):
        scale = np.abs(A).max(initial=1e-12)
        worst = max(worst, float(np.abs(np.minimum(A / scale, gradient * scale / np.linalg.norm(X) ** 2)).max()))
    return worst


def accelerated(method: str, accelerate: Accelerate, **fields: Any) -> Settings:
    """Settings of a run that ends soon, after a first phase on a smaller tensor."""
    stop = {"criterion": "relative_objective", "tolerance": 1e-5, "patience": 3}
    fields = {"rank": 4, "beta": 0.1, "rescale": True, "init": "random_scaled", "stop": stop, **fields}
    return Settings(method=method, accelerate=accelerate, **fields)


def same_bits(ours: Sequence[Array], theirs: Sequence[Array]) -> bool:
    return [A.tobytes() for A in ours] == [A.tobytes() for A in theirs]
