"""Components that are zero in every mode stay zero, and do not affect the others."""

import numpy as np
import pytest

from sparse_ncp.solvers import METHODS, Settings, solve
from sparse_ncp.solvers.tensor.products import Float64
from tests.solvers.problems import planted

X = planted(3).tensor
EXTRAPOLABLE = [name for name, method in METHODS.items() if method.extrapolable]
DEAD = [1, 4]
LIVING = [0, 2, 3]


def begun(columns: list[int], zero: tuple[int, ...] = (0, 1, 2)) -> list[Float64]:
    """Return factors with the same living columns, and others that are zero in some modes."""
    random = np.random.default_rng(1)
    factors = [random.random((length, 5)) for length in X.shape]
    for mode in zero:
        factors[mode][:, DEAD] = 0
    return [A[:, columns] for A in factors]


def asked(method: str, rank: int, **fields: object) -> Settings:
    given = {"beta": 0.1, "alpha": 1e-3, "rescale": True, "extrapolate": True, **fields}
    stop = {"max_iterations": 15, "tolerance": 0.0}
    return Settings.model_validate({"rank": rank, "method": method, "stop": stop, **given})


@pytest.mark.parametrize("method", EXTRAPOLABLE)
@pytest.mark.parametrize("penalty", ["l1", "l1_squared"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_others_are_fitted_as_if_they_were_alone(method: str, penalty: str, masked: bool) -> None:
    mask = np.random.default_rng(2).random(X.shape) > 0.1 if masked else None
    all_of_them = solve(X, asked(method, 5, penalty=penalty), initial=begun([0, 1, 2, 3, 4]), mask=mask)
    alone = solve(X, asked(method, 3, penalty=penalty), initial=begun(LIVING), mask=mask)
    np.testing.assert_allclose(all_of_them.history.objective, alone.history.objective, rtol=1e-9)
    for A, B in zip(all_of_them.factors, alone.factors, strict=True):
        assert not A[:, DEAD].any()
        np.testing.assert_allclose(A[:, LIVING], B, atol=1e-7 * float(B.max()))


@pytest.mark.parametrize("method", EXTRAPOLABLE)
def test_one_that_is_zero_in_a_single_mode_may_come_back(method: str) -> None:
    result = solve(X, asked(method, 5, beta=0.0, alpha=0.0), initial=begun([0, 1, 2, 3, 4], zero=(0,)))
    assert all(A[:, DEAD].any(axis=0).all() for A in result.factors)


@pytest.mark.parametrize("method", EXTRAPOLABLE)
def test_factors_that_are_fixed_keep_their_columns(method: str) -> None:
    initial = begun([0, 1, 2, 3, 4], zero=(0, 1))
    result = solve(X, asked(method, 5), initial=initial, fixed={3: initial[2]})
    assert np.array_equal(result.factors[2], initial[2])
    assert not any(A[:, DEAD].any() for A in result.factors[:2])


@pytest.mark.parametrize("method", EXTRAPOLABLE)
def test_all_may_be_zero(method: str) -> None:
    result = solve(X, asked(method, 5), initial=[np.zeros((length, 5)) for length in X.shape])
    assert not any(A.any() for A in result.factors)
