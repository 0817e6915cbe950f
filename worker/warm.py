"""Load and compile everything a job needs before the first one comes."""

import warnings

import numpy as np
import scipy.io  # noqa: F401 - loaded here, before the first job is forked

from solvers import METHODS, Settings, Stop, solve


def warm() -> None:
    """One tiny run of every method: compilers and caches are paid for here, once, not by a job."""
    tensor = np.ones((2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method in METHODS:
            solve(tensor, Settings(rank=1, method=method, stop=Stop(max_iterations=1)), threads=1)
