"""Small planted problems and the measures that the tests judge by."""

import numpy as np

from solvers import METHODS, Settings, solve, synthetic
from tests.solvers import literal

SHAPES = {2: (12, 9), 3: (9, 7, 5), 4: (6, 5, 4, 3), 5: (5, 4, 3, 3, 2)}

# Every option that changes the path of a method: the variants that resume, determinism and promises are tested on.
VARIANTS = [
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


def name_of(variant):
    return "-".join(str(value) for value in variant.values())


def planted(order=3, rank=3, seed=0, snr_db=30.0):
    return synthetic.planted(SHAPES[order], rank, snr_db=snr_db, seed=seed)


def start(shape, rank, seed=0):
    """Positive factors, so that no method begins with a dead component."""
    random = np.random.default_rng(seed)
    return [random.random((length, rank)) + 0.1 for length in shape]


def run(X, *, iterations=20, threads=1, initial=None, **fields):
    stop = {"max_iterations": iterations, "tolerance": 0.0}
    return solve(X, Settings(**{"rank": 4, "stop": stop, **fields}), initial=initial, threads=threads)


def is_squared(settings):
    return (settings.penalty or METHODS[settings.method].penalty) == "l1_squared"


def per_mode(value, order):
    return value if isinstance(value, tuple) else (value,) * order


def gradients(X, factors, settings):
    """∂O/∂Aⁿ for every mode, from the definition."""
    problem = literal.Literal(
        X, list(factors), per_mode(settings.alpha, X.ndim), per_mode(settings.beta, X.ndim), is_squared(settings)
    )
    for n, A in enumerate(factors):
        Q, M, beta = problem.subproblem(n)
        yield A @ Q - M + beta


def kkt_residual(X, factors, settings):
    """How far from a stationary point of O over A ≥ 0: min(A, gradient) in the units of a balanced component."""
    worst = 0.0
    for A, gradient in zip(factors, gradients(X, factors, settings), strict=True):
        scale = np.abs(A).max(initial=1e-12)
        worst = max(worst, float(np.abs(np.minimum(A / scale, gradient * scale / np.linalg.norm(X) ** 2)).max()))
    return worst
