"""Tensors with known factors: those of the paper for any shape, ones like its EEG data, and fluorescence."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparse_ncp.solvers.tensor.gemm.blocks import split_point
from sparse_ncp.solvers.tensor.products import Float64, khatri_rao
from sparse_ncp.solvers.tensor.threads import single_threaded_blas


@dataclass(frozen=True)
class Synthetic:
    """A tensor and the factors it was made of, before the noise."""

    tensor: Float64
    factors: list[Float64]


def sparse_signals(length: int, channels: int, random: np.random.Generator) -> Float64:
    """Nonnegative signals in columns, most entries zero: a few short bumps each, of random place and height."""
    time = np.arange(length)[:, None]
    width = max(1.0, length / 200)
    signals = np.zeros((length, channels))
    for channel in range(channels):
        centres = random.uniform(0, length, size=5)
        heights = random.uniform(0.2, 1.0, size=5)
        widths = random.uniform(width, 3 * width, size=5)
        bumps = heights * np.maximum(0.0, 1 - np.square((time - centres) / widths))
        bumps[min(length - 1, int(centres[0])), 0] = heights[0]  # no channel is empty, however short
        signals[:, channel] = bumps.max(axis=1)
    return signals


def planted(shape: Sequence[int] = (1000, 100, 100), rank: int = 10, snr_db: float = 40.0, seed: int = 0) -> Synthetic:
    """The paper's synthetic tensor of any order: sparse signals in mode 1, uniform random factors in the others."""
    random = np.random.default_rng(seed)
    factors = [sparse_signals(shape[0], rank, random), *(random.random((length, rank)) for length in shape[1:])]
    return Synthetic(_noisy(factors, 10 ** (-snr_db / 20), random), factors)


def evoked(shape: Sequence[int] = (9, 71, 60, 42), rank: int = 20, noise: float = 0.1, seed: int = 0) -> Synthetic:
    """Make a tensor like the paper's EEG data: channel × frequency × time × subject, smooth in all but the last.

    `noise` is its norm relative to the signal's. For the third-order form, `merge_modes` joins frequency and time.
    """
    random = np.random.default_rng(seed)
    factors = list[Float64]()
    for length in shape[:-1]:  # one blob per column
        position = np.arange(length)[:, None] / length
        centres, widths = random.uniform(0, 1, rank), random.uniform(0.05, 0.25, rank)
        factors.append(np.exp(-np.square((position - centres) / widths) / 2))
    factors.append(random.random((shape[-1], rank)))
    return Synthetic(_noisy(factors, noise, random), factors)


def fluorescence(
    samples: int, emission: Sequence[float], excitation: Sequence[float], noise: float = 0.01, seed: int = 0
) -> Synthetic:
    """Mixtures of three fluorophores: sample × emission × excitation, wavelengths in nm.

    As a spectrometer gives them: readings around zero may be negative, and where the light is that of the lamp, up to
    10 nm above the excitation, they are missing (NaN). `noise` is its norm relative to the signal's.
    """
    random = np.random.default_rng(seed)
    peaks = np.array([[305.0, 15.0, 272.0, 8.0], [345.0, 20.0, 283.0, 10.0], [400.0, 25.0, 258.0, 12.0]])
    nanometres = np.asarray(emission, np.float64), np.asarray(excitation, np.float64)
    spectra = [
        np.exp(-np.square((along[:, None] - centre) / width) / 2)
        for along, centre, width in zip(nanometres, peaks[:, ::2].T, peaks[:, 1::2].T, strict=True)
    ]
    factors = [random.uniform(0.05, 1.0, (samples, len(peaks))), *spectra]
    tensor = np.einsum("ir,jr,kr->ijk", *factors)
    scatter = random.standard_normal(tensor.shape)
    tensor += scatter * (noise * float(np.linalg.norm(tensor)) / float(np.linalg.norm(scatter)))
    tensor[:, nanometres[0][:, None] <= nanometres[1] + 10] = np.nan
    return Synthetic(tensor, factors)


def merge_modes(synthetic: Synthetic, mode: int) -> Synthetic:
    """Join `mode` and the next one (numbered from 0) into one mode; the tensor is a view of the same entries."""
    factors, shape = synthetic.factors, synthetic.tensor.shape
    joined = (*shape[:mode], shape[mode] * shape[mode + 1], *shape[mode + 2 :])
    both = np.ascontiguousarray(khatri_rao(factors[mode : mode + 2]).T, np.float64)
    return Synthetic(synthetic.tensor.reshape(joined), [*factors[:mode], both, *factors[mode + 2 :]])


def _noisy(factors: Sequence[Float64], level: float, random: np.random.Generator) -> Float64:
    """The model plus max(0, randn), scaled to `level` times the model's norm; the same bits on any number of cores."""
    shape = [len(A) for A in factors]
    cut = split_point(shape)
    noise = random.standard_normal(shape)
    np.maximum(noise, 0.0, out=noise)
    with single_threaded_blas():
        tensor: Float64 = (khatri_rao(factors[:cut]).T @ khatri_rao(factors[cut:])).reshape(shape)
        noise *= level * float(np.linalg.norm(tensor)) / float(np.linalg.norm(noise))
    tensor += noise
    return tensor
