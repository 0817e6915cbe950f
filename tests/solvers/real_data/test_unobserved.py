"""A model that is large only where nothing was read is reported, with a cure that works."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import Diagnostics, Result, Settings, diagnose, solve
from sparse_ncp.solvers.bcd.warnings import EXTRAPOLATED
from tests.solvers.problems import Layout, start
from tests.solvers.real_data.patterns import UNIDENTIFIED, banded, model

LAYOUTS: dict[str, Layout] = {"C": np.ascontiguousarray, "Fortran": np.asfortranarray}


def fit(X: Any, rank: int = 3, mask: Any = None, **fields: Any) -> Result:
    return solve(X, Settings.recommended(rank, **fields), mask=mask)


def warned(result: Result) -> list[str]:
    return [warning for warning in result.warnings if "not determined by the readings" in warning]


def found_share(result: Result) -> float:
    assert result.diagnostics is not None
    assert result.diagnostics.unobserved is not None
    return result.diagnostics.components[result.diagnostics.unobserved.component - 1].unobserved


def test_a_fit_that_the_readings_do_not_determine_is_reported_and_cured() -> None:
    X = banded()
    result = fit(X, **UNIDENTIFIED)
    assert result.relative_error < 0.05  # it looks perfect
    assert result.diagnostics is not None
    found = result.diagnostics.unobserved
    assert found is not None
    hidden, readings = model(result.factors)[np.isnan(X)], X[~np.isnan(X)]
    assert found.ratio == pytest.approx(hidden.max() / readings.max())
    assert found.ratio > EXTRAPOLATED
    assert found.missing == hidden.size
    [warning] = warned(result)
    assert f"component {found.component} is not determined" in warning
    assert f"{100 * found_share(result):.3g} % of the square" in warning
    assert "; give a small sparsity, such as 0.002, or fewer components" in warning
    cured = fit(X, sparsity=0.002, **UNIDENTIFIED)
    assert not warned(cured)
    assert cured.relative_error <= result.relative_error


FORMS: dict[str, Callable[[Any], Result]] = {
    "float32": lambda X: fit(X.astype(np.float32), **UNIDENTIFIED),
    "mask": lambda X: fit(np.nan_to_num(X), mask=~np.isnan(X), **UNIDENTIFIED),
    "masked array": lambda X: fit(np.ma.masked_array(np.nan_to_num(X), np.isnan(X)), **UNIDENTIFIED),
    "zeros": lambda X: fit(np.nan_to_num(X), zeros="missing", **UNIDENTIFIED),
    "excluded sample": lambda X: fit(X, exclude={1: [0]}, **UNIDENTIFIED),
}


@pytest.mark.parametrize("form", FORMS)
def test_it_is_reported_in_whatever_form_the_entries_are_missing(form: str) -> None:
    result = FORMS[form](banded())
    [warning] = warned(result)
    assert result.diagnostics is not None
    assert result.diagnostics.unobserved is not None
    assert result.diagnostics.unobserved.missing == result.missing
    assert f"component {result.diagnostics.unobserved.component} is not determined" in warning


def test_the_cure_replaces_the_penalty_that_was_given() -> None:
    [squared] = warned(fit(banded(), penalty="l1_squared", **UNIDENTIFIED))
    assert "; give penalty 'l1' and a small sparsity, such as 0.002, or fewer" in squared
    [weighed] = warned(fit(banded(), beta=1e-9, **UNIDENTIFIED))
    assert "; give a small sparsity, such as 0.002, instead of beta, or fewer" in weighed


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(9, 7, 5), (300, 2, 250), (6, 5, 4, 3)])
def test_the_figures_are_those_of_the_whole_model(shape: tuple[int, ...], layout: str, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    X, factors = random.random(shape), start(shape, 3)
    missing = random.random(shape) < 0.3
    holes = LAYOUTS[layout](np.where(missing, np.nan, X))
    np.save(tmp_path / "x.npy", holes)
    parts = [model([A[:, [r]] for A in factors]) for r in range(3)]
    whole = np.sum(parts, axis=0)
    peak = np.where(missing, whole, 0).argmax()
    forms = [diagnose(holes, factors), diagnose(X, factors, mask=~missing)]
    forms += [diagnose(np.load(tmp_path / "x.npy", mmap_mode="r"), factors)]
    forms += [diagnose(np.ma.masked_array(X, missing), factors, threads=2), diagnose(holes.astype(np.float32), factors)]
    for found in forms:
        assert isinstance(found, Diagnostics)
        assert found.unobserved is not None
        assert found.unobserved.missing == missing.sum()
        assert found.unobserved.ratio == pytest.approx(whole[missing].max() / X[~missing].max())
        assert found.unobserved.component == 1 + int(np.argmax([part.flat[peak] for part in parts]))
        shares = [np.square(part[missing]).sum() / np.square(part).sum() for part in parts]
        np.testing.assert_allclose([component.unobserved for component in found.components], shares, rtol=1e-10)


def test_a_complete_tensor_has_no_such_region() -> None:
    found = diagnose(np.random.default_rng(0).random((9, 7, 5)), start((9, 7, 5), 2))
    assert found is not None
    assert found.unobserved is None
    assert [component.unobserved for component in found.components] == [0.0, 0.0]
