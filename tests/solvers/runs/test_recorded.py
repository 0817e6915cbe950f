"""States that were saved by this release are read by later versions, and their runs go on."""

from pathlib import Path

import numpy as np
import pytest

from sparse_ncp.solvers import InvalidInput, State, sweeps, synthetic
from sparse_ncp.solvers.machine import machine_signature
from tests.solvers.problems import same_bits

RECORDED = Path(__file__).parent / "recorded"
X = synthetic.planted((12, 10, 8), rank=2, snr_db=30.0).tensor


def recorded(name: str) -> State:
    return State.from_bytes((RECORDED / name).read_bytes())


def test_a_recorded_state_goes_on_to_the_recorded_end() -> None:
    saved, end = recorded("state-format-4.npz"), recorded("state-format-4-end.npz")
    *_, last = sweeps(X, saved.settings, resume=saved)
    assert last.history.objective[: saved.iteration] == saved.history.objective
    if saved.machine == machine_signature():
        assert last.history.objective == end.history.objective
        assert same_bits(last.factors, end.factors)
    else:  # other last digits may end the run some iterations earlier or later
        assert last.stop_reason == end.stop_reason
        assert last.objective == pytest.approx(end.objective, rel=1e-3)
        assert any("another kind of machine" in note for note in last.notes)


def test_a_state_of_another_format_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparse_ncp.solvers.bcd.state.FORMAT", 5)
    with pytest.raises(InvalidInput, match="has format 4, not 5"):
        recorded("state-format-4.npz")


def test_a_recorded_state_has_the_factors_of_its_tensor() -> None:
    saved = recorded("state-format-4.npz")
    assert [A.shape for A in saved.factors] == [(12, 3), (10, 3), (8, 3)]
    assert {A.dtype for A in saved.factors} == {np.dtype(np.float64)}
