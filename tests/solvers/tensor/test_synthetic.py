"""The generators give the tensors that the paper describes, and the same ones for the same seed."""

import numpy as np
import pytest

from sparse_ncp.solvers import synthetic
from tests.solvers.literal import model


@pytest.mark.parametrize("shape", [(50, 8), (100, 9, 8), (60, 6, 5, 4), (30, 4, 3, 2, 2)])
def test_planted_is_the_model_plus_noise_at_the_asked_level(shape: tuple[int, ...]) -> None:
    made = synthetic.planted(shape, rank=4, snr_db=20, seed=3)
    noise = made.tensor - model(made.factors)
    assert made.tensor.shape == shape
    assert (noise >= -1e-12).all()
    assert np.linalg.norm(noise) / np.linalg.norm(model(made.factors)) == pytest.approx(0.1, rel=1e-6)


def test_the_signals_are_mostly_zero_and_none_is_empty() -> None:
    signals = synthetic.planted((1000, 5, 4)).factors[0]
    assert signals.shape == (1000, 10)
    assert 0.8 < (signals == 0).mean() < 0.98
    assert (signals.max(axis=0) > 0.1).all()
    assert (synthetic.planted((3, 4, 5), rank=6).factors[0].max(axis=0) > 0).all()


def test_the_floor_of_the_relative_error_is_the_papers() -> None:
    """The fit absorbs the mean of max(0, randn): what is left of 40 dB is 0.01 √(1 − 1/π) = 0.0083."""
    made = synthetic.planted((200, 30, 20), rank=2)
    noise = made.tensor - model(made.factors)
    assert np.linalg.norm(noise - noise.mean()) / np.linalg.norm(made.tensor) == pytest.approx(0.00826, rel=0.01)


def test_a_seed_decides_everything() -> None:
    first, again, other = (synthetic.planted((30, 5, 4), seed=seed).tensor for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_the_evoked_tensor_has_a_third_and_a_fourth_order_form() -> None:
    fourth = synthetic.evoked((4, 7, 6, 5), rank=3, noise=0.1)
    third = synthetic.merge_modes(fourth, 1)
    assert third.tensor.shape == (4, 42, 5)
    assert np.shares_memory(third.tensor, fourth.tensor)
    np.testing.assert_allclose(model(third.factors), model(fourth.factors).reshape(4, 42, 5), rtol=1e-12)
    noise = fourth.tensor - model(fourth.factors)
    assert np.linalg.norm(noise) / np.linalg.norm(model(fourth.factors)) == pytest.approx(0.1, rel=1e-9)
