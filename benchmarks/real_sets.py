"""Six real sets, three of which have a number of components that is known.

`aminoacids_5x201x61.npy`, `dorrit_27x116x18.npy` and `erp_60x38x141x4.npy` are read from a folder that is given: the
first is public (University of Copenhagen), the second in the R package rrcov3way, the third made from the test data of
MNE-Python. The others come with tensorly.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparse_ncp.solvers.tensor.products import Float64

# Samples of Dorrit that are known to be outlying, and the faulty one of the kinetic set, counted from 0.
OUTLYING, FAULTY = (1, 2, 4, 9), 27
# Every so many times and frequencies of the EEG set are kept.
THINNED = 3


class RealSet(NamedTuple):
    """A tensor, NaN where it is missing, and the numbers of components that are right; none if that is not known."""

    name: str
    tensor: Float64
    known: tuple[int, ...]


def real_sets(folder: Path) -> Iterator[RealSet]:
    """Yield the sets; that of a file that is not there is left out."""
    if (path := folder / "aminoacids_5x201x61.npy").exists():
        yield RealSet("amino acids, raw", np.load(path).astype(np.float64), (3,))
    if (path := folder / "dorrit_27x116x18.npy").exists():
        dorrit = np.load(path).astype(np.float64)
        dorrit[:, (dorrit == 0).all(axis=0)] = np.nan  # readings that were cut out
        yield RealSet("Dorrit, zeros as holes, 23 samples", np.delete(dorrit, OUTLYING, axis=0), (4,))
    if (path := folder / "erp_60x38x141x4.npy").exists():
        erp = np.load(path).astype(np.float64)[:, :, ::THINNED]
        yield RealSet("EEG power", erp, ())
    from tensorly import datasets

    kinetic = np.delete(np.asarray(datasets.load_kinetic()["tensor"], np.float64), FAULTY, axis=0)
    yield RealSet("kinetic, 63 samples", kinetic, (4, 5))
    yield RealSet("IL-2", np.asarray(datasets.load_IL2data()["tensor"], np.float64), ())
    yield RealSet("covid-19 serology", np.asarray(datasets.load_covid19_serology()["tensor"], np.float64), ())
