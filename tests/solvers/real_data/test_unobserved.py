"""A model that is large only where nothing was read is reported, with a cure that works."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import Diagnostics, Result, Settings, diagnose, solve
from sparse_ncp.solvers.bcd.warnings import EXTRAPOLATED
from tests.solvers.problems import Layout, start
from tests.solvers.real_data.patterns import model

LAYOUTS: dict[str, Layout] = {"C": np.ascontiguousarray, "Fortran": np.asfortranarray}


def peaks(centres: list[float], width: float, length: int) -> Any:
    places = np.arange(length)[:, None]
    return np.exp(-0.5 * ((places - np.array(centres)) / width) ** 2)


def banded() -> Any:
    """Two components, of which the second peaks inside of a band that was not read."""
    random = np.random.default_rng(0)
    truth = [random.random((10, 2)) + 0.2, peaks([8.0, 24.0], 2.5, 40), peaks([6.0, 18.0], 2.5, 30)]
    X = model(truth) + 0.01 * random.random((10, 40, 30))
    emission, excitation = np.meshgrid(np.arange(40), np.arange(30), indexing="ij")
    X[:, np.abs(emission - excitation - 6) < 5] = np.nan
    return X


def fit(X: Any, rank: int = 3, **fields: Any) -> Result:
    return solve(X, Settings.recommended(rank, missing="nan", **fields))


def warned(result: Result) -> list[str]:
    return [warning for warning in result.warnings if "not determined by the readings" in warning]


def unidentified() -> Result:
    """The first seed whose fit is large inside of the band."""
    X = banded()
    for seed in range(20):
        result = fit(X, seed=seed, regrow=False, starts=1)
        if warned(result):
            return result
    raise AssertionError("no seed gave an unidentified fit")


def test_a_fit_that_the_readings_do_not_determine_is_reported_and_cured() -> None:
    X, result = banded(), unidentified()
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
    assert "sparsity, such as 0.002" in warning
    cured = fit(X, seed=result.settings.seed, regrow=False, starts=1, sparsity=0.002)
    assert not warned(cured)
    assert cured.relative_error <= result.relative_error


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
    forms += [diagnose(np.ma.masked_array(X, missing), factors, threads=2)]
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
