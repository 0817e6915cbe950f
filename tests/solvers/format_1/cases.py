"""Runs that the version before was asked for, whose states have format 1: six methods, both penalties, every phase."""

from typing import Any, Literal, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info


def machine() -> str:
    """All that bits depend on besides the code: the kernels that BLAS chooses for this processor, and the compiler."""
    blas = {f"{used['version']} {used['architecture']}" for used in threadpool_info() if used["user_api"] == "blas"}
    return "; ".join((*sorted(blas), np.__version__, numba.__version__))


class Case(NamedTuple):
    shape: tuple[int, ...]
    dtype: Literal["f8", "f4"]
    order: Literal["C", "F"]
    fields: dict[str, Any]  # of the settings, besides rank and stop

    def tensor(self) -> NDArray[Any]:
        random = np.random.default_rng(3)
        factors = [np.maximum(0, random.standard_normal((length, 3))) for length in self.shape]
        model = np.zeros(self.shape)
        for columns in zip(*(A.T for A in factors), strict=True):
            component = np.ones(())
            for column in columns:
                component = component[..., None] * column
            model += component
        noisy = np.maximum(0, model + 0.05 * random.standard_normal(self.shape))
        return np.asarray(noisy, self.dtype, order=self.order)


RANK = 4
SWEEPS, SAVED_AFTER = 14, 4
STOP = {"tolerance": 0.0, "max_iterations": SWEEPS}
CALM = {"criterion": "relative_objective", "tolerance": 1e-3, "patience": 2, "max_iterations": 30}
COMPRESSED = {"accelerate": "compress", "alpha": 1e-6, "beta": 0.01}
MIDDLE = (9, 300, 33)  # the inner half of its modes is the one in the middle

CASES: dict[str, Case] = {
    "mu": Case((12, 10, 8), "f8", "C", {"method": "mu", "beta": 0.1, "inner_passes": 2}),
    "als": Case((12, 10, 8), "f4", "C", {"method": "als", "beta": 0.01}),
    "hals, unit columns": Case((12, 10, 8), "f8", "F", {"method": "hals", "beta": 0.1}),
    "hals, three passes": Case(MIDDLE, "f8", "C", {"method": "hals", "rescale": True, "beta": 0.1, "inner_passes": 3}),
    "hals, order two": Case((40, 30), "f4", "C", {"method": "hals", "normalise": False}),
    "apg": Case(MIDDLE, "f4", "F", {"method": "apg", "beta": 0.1, "rescale": True}),
    "anls-as": Case((6, 5, 4, 7), "f8", "C", {"method": "anls-as", "beta": 0.1, "rescale": True}),
    "anls-bpp": Case((6, 5, 4, 7), "f4", "F", {"method": "anls-bpp", "penalty": "l1", "beta": 0.01, "rescale": True}),
    "anls-bpp, squared, no beta": Case((12, 10, 8), "f8", "C", {"method": "anls-bpp", "rescale": True}),
    "anls-bpp, in the middle": Case(MIDDLE, "f8", "F", {"method": "anls-bpp", "penalty": "l1", "rescale": True}),
    "als, compressed": Case((20, 18, 16), "f8", "F", {"method": "als", **COMPRESSED}),
    "hals, compressed": Case((20, 18, 16), "f4", "C", {"method": "hals", **COMPRESSED}),
    "anls-bpp, compressed": Case((20, 18, 16), "f8", "C", {"method": "anls-bpp", "rescale": True, **COMPRESSED}),
}
