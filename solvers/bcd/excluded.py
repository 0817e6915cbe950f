"""Compute the rows of excluded indices, for a model that was fitted without them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.problem import EXACT_METHOD, resolve
from sparse_ncp.solvers.bcd.state import State
from sparse_ncp.solvers.block import Memory
from sparse_ncp.solvers.methods import METHODS
from sparse_ncp.solvers.tensor.entries import normal_equations
from sparse_ncp.solvers.tensor.exclusion import Exclusion
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.protocol import Gram
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
from sparse_ncp.solvers.tensor.validation import as_array, check_mask


def excluded_rows(
    tensor: object,
    state: State,
    *,
    mask: object = None,
    fixed: Mapping[int, NDArray[Any]] | None = None,
    threads: int | None = None,
) -> dict[int, Array]:
    """Compute the rows of the factors at excluded indices, by nonnegative least squares for the fitted model.

    Each slice is fitted by itself, over its observed entries at the kept indices of the other modes, with the penalties
    of the fit. So the rows of one mode do not depend on what is excluded in another. Entries that are not finite count
    as missing; a slice without any reading gets zeros. Rows of fixed factors stay as they were given.

    Parameters
    ----------
    tensor, mask, fixed, threads
        As for `solve`.
    state : State
        The last state of the run.

    Returns
    -------
    dict of int to numpy.ndarray
        The rows of each mode with excluded indices, in the order of these, by mode, counted from 1.
    """
    if state.settings.exclude is None:
        return {}
    array = as_array(tensor)
    exclusion = Exclusion.of(state.settings.exclude, array.shape)
    observed = None if mask is None else check_mask(mask, array.shape)
    factors = state.outcome()[0]
    problem = resolve(state.settings, state.weights, state.fixed)
    rows: dict[int, Array] = {}
    with Threads(threads) as pool, single_threaded_blas():
        for mode, excluded in enumerate(exclusion.excluded):
            if not excluded.size:
                continue
            dtype = factors[mode].dtype
            if mode in state.fixed:
                rows[mode + 1] = np.asarray((fixed or {})[mode + 1])[excluded].astype(dtype)
                continue
            exact = [A.astype(np.float64, copy=False) for A in factors]
            exact[mode] = np.ones((1, exact[mode].shape[1]))
            slices = [
                normal_equations(
                    exclusion.slice_of(array, mode, index),
                    None if observed is None else exclusion.slice_of(observed, mode, index),
                    exact,
                )
                for index in excluded.tolist()
            ]
            G = np.stack([found.gram for found in slices])
            M = np.stack([found.product for found in slices])
            block = problem.block(mode, Gram(G, G.sum(axis=0)), M, pool)
            rows[mode + 1] = METHODS[EXACT_METHOD].update(np.zeros_like(M), block, Memory())[0].astype(dtype)
    return rows
