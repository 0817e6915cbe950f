"""Zeros that look like missing readings are found, named, and left out of the fit only if the settings say so."""

import warnings

import numpy as np
import pytest
from numpy.typing import NDArray

from sparse_ncp.solvers import InvalidInput, Settings, State, find_zero_fibres, solve, sweeps, synthetic
from sparse_ncp.solvers.bcd.prepare import RunInputs, prepare
from sparse_ncp.solvers.tensor.threads import Threads

SHAPE = (14, 30, 25)


def spectra(seed: int = 2, order: str = "C") -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return a tensor with a diagonal band of zeros in every sample, the same before, and where the band is."""
    random = np.random.default_rng(seed)
    grid = [np.arange(length)[:, None] for length in SHAPE[1:]]
    peaks = [np.exp(-(((places - random.random(3) * len(places)) / 5) ** 2)) for places in grid]
    whole = np.einsum("ir,jr,kr->ijk", random.random((SHAPE[0], 3)) + 0.2, *peaks)
    whole += 0.01 * random.random(SHAPE)
    band = np.abs(np.arange(30)[:, None] * 25 / 30 - np.arange(25)) < 2
    cut = np.where(band, 0.0, whole)
    return np.array(cut, order=order), whole, np.broadcast_to(band, SHAPE)  # type: ignore[call-overload]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("mode", [1, 2, 3])
def test_readings_that_were_cut_out_are_found_along_any_mode(mode: int, order: str) -> None:
    cut, _, band = spectra(order=order)
    [found] = find_zero_fibres(np.moveaxis(cut, 0, mode - 1))
    assert found.look_missing
    assert found.mode == mode
    assert found.entries == np.count_nonzero(band)


@pytest.mark.parametrize("noise", ["none", "clipped", "counts"])
@pytest.mark.parametrize("seed", range(4))
def test_zeros_that_the_components_explain_are_readings(noise: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    factors = [random.random((length, 4)) * (random.random((length, 4)) < 0.4) for length in SHAPE]
    tensor = np.einsum("ir,jr,kr->ijk", *factors)
    if noise == "clipped":
        tensor = np.maximum(0, tensor - 0.3 * tensor.mean() + 0.05 * tensor.std() * random.standard_normal(SHAPE))
    if noise == "counts":
        tensor = random.poisson(3 * tensor).astype(float)
    assert find_zero_fibres(tensor)
    assert not any(found.look_missing for found in find_zero_fibres(tensor))


def test_a_tensor_without_zeros_has_no_fibres_of_them() -> None:
    assert find_zero_fibres(synthetic.planted(SHAPE, 3).tensor + 1) == ()
    assert find_zero_fibres(np.zeros(SHAPE)) == ()


def test_missing_and_masked_entries_are_not_taken_for_zeros() -> None:
    cut, _, band = spectra()
    holes = np.random.default_rng(1).random(SHAPE) < 0.2
    [found] = find_zero_fibres(np.where(holes, np.nan, cut))
    assert found.look_missing
    assert found.entries == np.count_nonzero(band & ~holes)
    assert find_zero_fibres(cut, mask=~band) == ()
    assert find_zero_fibres(np.ma.masked_array(cut, mask=band)) == ()


def test_a_large_tensor_is_thinned_and_its_fibres_are_estimated() -> None:
    random = np.random.default_rng(2)
    tensor = np.einsum("ir,jr,kr->ijk", *(random.random((length, 3)) for length in (200, 150, 120)))
    tensor[:, 40:60, 30:90] = 0
    [found] = find_zero_fibres(tensor)
    assert found.look_missing
    assert found.entries == pytest.approx(200 * 20 * 60, rel=0.15)


def test_a_run_warns_and_changes_nothing_unasked() -> None:
    cut, _, band = spectra()
    result = solve(cut, Settings.recommended(3))
    [warning] = [text for text in result.warnings if "zero along the whole of mode 1" in text]
    assert f"{np.count_nonzero(band):,} entries" in warning
    assert "zeros='missing'" in warning
    assert result.missing == 0


def test_the_remedy_of_the_warning_restores_the_fit() -> None:
    cut, whole, band = spectra()
    with_zeros = solve(cut, Settings.recommended(3))
    remedied = solve(cut, Settings.recommended(3, zeros="missing"))
    masked = solve(cut, Settings.recommended(3), mask=~band)
    assert remedied.missing == np.count_nonzero(band)
    assert remedied.objective == masked.objective
    assert remedied.diagnostics == masked.diagnostics
    model = np.einsum("ir,jr,kr->ijk", *remedied.factors)
    assert np.linalg.norm((model - whole)[band]) < 0.05 * np.linalg.norm(whole[band])
    assert remedied.relative_error < with_zeros.relative_error / 5
    assert any("taken as missing" in text for text in remedied.warnings)


def test_zeros_that_are_readings_stay_readings_even_if_missing_ones_are_looked_for() -> None:
    random = np.random.default_rng(3)
    factors = [random.random((length, 3)) * (random.random((length, 3)) < 0.5) for length in SHAPE]
    result = solve(np.einsum("ir,jr,kr->ijk", *factors), Settings(rank=3, method="hals", zeros="missing"))
    assert result.missing == 0
    assert any("all of them are readings" in text for text in result.warnings)


def test_an_index_with_zeros_only_keeps_them() -> None:
    cut, _, band = spectra()
    cut[:, 4] = 0
    result = solve(cut, Settings(rank=3, method="hals", zeros="missing"))
    kept = np.zeros(SHAPE, bool)
    kept[:, 4] = True
    assert result.missing == np.count_nonzero(band & ~kept)


def test_a_run_that_leaves_zeros_out_resumes_to_the_same_bits() -> None:
    cut, _, _ = spectra()
    settings = Settings.recommended(3, zeros="missing")
    states = list(sweeps(cut, settings))
    *_, last = sweeps(cut, settings, resume=State.from_bytes(states[2].to_bytes()))
    assert last.history.objective == states[-1].history.objective
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(last.factors, states[-1].factors, strict=True))
    assert last.notes == states[-1].notes


def test_a_prepared_tensor_has_a_mask_of_its_own() -> None:
    cut, _, _ = spectra()
    with Threads(1) as pool:
        prepared = prepare(RunInputs(cut, Settings(rank=2, method="hals")), pool).tensor
    with pytest.raises(InvalidInput, match="zeros: cannot be 'missing', since the tensor has a mask of its own"):
        solve(prepared, Settings(rank=2, method="hals", zeros="missing"))


def test_extreme_entries_do_not_disturb_the_search() -> None:
    cut, _, band = spectra()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor in (1e-200, 1e200):
            [found] = find_zero_fibres(cut * factor)
            assert found.entries == np.count_nonzero(band)
        with pytest.raises(InvalidInput, match="infinite"):
            solve(np.where(cut > 1, np.inf, cut), Settings(rank=2, method="hals"))
