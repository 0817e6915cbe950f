"""Sample tensors, to try the server without data of one's own."""

import io
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sparse_ncp.solvers import synthetic
from sparse_ncp.solvers.runtime import Float64
from sparse_ncp.worker.contract import Axes, Axis
from sparse_ncp.worker.errors import NotFound

ELECTRODES = ("Fz", "F3", "F4", "Cz", "C3", "C4", "Pz", "P3", "P4")


class Sample(NamedTuple):
    """A generated tensor, the labels of its modes, and suitable settings."""

    name: str
    title: str
    description: str
    axes: Axes
    suggested: Mapping[str, Any]
    make: Callable[[Axes], Float64]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis.values) for axis in self.axes)


def _numbers(name: str, unit: str, start: int, stop: int, step: int) -> Axis:
    return Axis(name=name, unit=unit, values=tuple(range(start, stop, step)))


def _fluorescence(axes: Axes) -> Float64:
    samples, *spectra = (axis.values for axis in axes)
    return synthetic.fluorescence(len(samples), *(np.array(values, np.float64).tolist() for values in spectra)).tensor


SAMPLES = {
    sample.name: sample
    for sample in (
        Sample(
            "fluorescence",
            "Fluorescence of mixtures",
            "Emission spectra of 20 mixtures of three fluorophores, for 31 wavelengths of the exciting light; made up, "
            "with missing readings where the lamp is seen and a few negative ones around zero.",
            (
                Axis(name="sample", values=tuple(f"M{number:02d}" for number in range(1, 21))),
                _numbers("emission", "nm", 260, 481, 4),
                _numbers("excitation", "nm", 240, 301, 2),
            ),
            {"rank": 3, "preset": "recommended", "missing": "nan", "negative": "keep"},
            _fluorescence,
        ),
        Sample(
            "evoked",
            "Evoked potentials",
            "Time and frequency of evoked potentials at nine electrodes in 12 subjects, with five components; made up.",
            (
                Axis(name="electrode", values=ELECTRODES),
                _numbers("frequency", "Hz", 1, 31, 1),
                _numbers("time", "ms", 0, 400, 10),
                Axis(name="subject", values=tuple(f"S{number:02d}" for number in range(1, 13))),
            ),
            {"rank": 5, "preset": "recommended"},
            lambda axes: synthetic.evoked([len(axis.values) for axis in axes], rank=5).tensor,
        ),
    )
}


def find_sample(name: str) -> Sample:
    """Return the sample of this name; raise NotFound if there is none."""
    if name not in SAMPLES:
        raise NotFound("sample", name)
    return SAMPLES[name]


@lru_cache
def sample_content(name: str) -> bytes:
    """Return the `.npy` file of a sample, always with the same bytes."""
    sample, file = find_sample(name), io.BytesIO()
    np.save(file, sample.make(sample.axes), allow_pickle=False)
    return file.getvalue()
