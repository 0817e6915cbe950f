"""Choose the number of components: `choose` yields a state after every step, the last of which has the outcome.

Overfit without a penalty, drop the cheapest component again and again, exchange between seeds; then let criteria vote
that need no model of the noise, or an estimated one. All is done in two views of the tensor: divided by the levels of
the noise that were estimated for every index of every mode, and as it is.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.studies.fitting.inputs import Inputs, prepare
from sparse_ncp.solvers.studies.settings import ChoiceSettings
from sparse_ncp.solvers.studies.stages import STAGES, begin
from sparse_ncp.solvers.studies.state import ChoiceState
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas


def choose(
    tensor: NDArray[Any],
    settings: ChoiceSettings | None = None,
    *,
    mask: NDArray[np.bool_] | None = None,
    resume: ChoiceState | None = None,
    threads: int | None = None,
) -> Iterator[ChoiceState]:
    """Choose the number of components, one step at a time.

    Computes in double precision, and needs 16 times the memory of the tensor with one thread, 8 times more with each
    further one. A tensor for which that is too much is refused, with the slices that make it small enough.

    Parameters
    ----------
    tensor
        The tensor to decompose. Entries may be negative or missing if the settings say so.
    settings
        How to choose; the defaults suit most tensors.
    mask
        True where an entry is observed; each mode has the tensor's length, or 1 where it is the same all along.
    resume
        A state to resume from, as an earlier call yielded it for the same tensor, mask and settings.
    threads
        The number of threads; all available cores by default.

    Yields
    ------
    ChoiceState
        The state after every step. The last one has the outcome.

    Examples
    --------
    >>> from sparse_ncp import synthetic
    >>> from sparse_ncp.solvers.studies import ChoiceSettings, choose
    >>> tensor = synthetic.planted((20, 10, 8), rank=2).tensor
    >>> *_, last = choose(tensor, ChoiceSettings(rank=4, seeds=2))
    >>> last.outcome.advice.suggestion >= 1
    True
    """
    asked = settings or (resume.settings if resume else ChoiceSettings())
    with Threads(threads) as pool:
        with single_threaded_blas():
            inputs = prepare(tensor, asked, mask, pool)
            state = begin(inputs, asked) if resume is None else _resumed(resume, inputs, settings)
        while state.stage != "done":
            with single_threaded_blas():
                state = STAGES[state.stage](inputs, state, pool)
            yield state


def _resumed(state: ChoiceState, inputs: Inputs, settings: ChoiceSettings | None) -> ChoiceState:
    here = inputs.data.X.shape, inputs.unit, inputs.data.entries.size
    if (state.shape, state.unit, state.observed) != here:
        problem = f"was saved for another tensor or mask, of shape {state.shape}, samples first"
        raise InvalidInput("resume", problem, "pass the tensor and the mask it belongs to")
    if settings is not None and settings != state.settings:
        raise InvalidInput("resume", "was saved with other settings", "omit the settings, or pass the same")
    return state
