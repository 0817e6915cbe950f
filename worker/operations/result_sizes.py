"""The largest size of the results of a run, which is reserved from the quota of its owner at submission."""

from typing import NamedTuple

import numpy as np

from sparse_ncp.solvers import Settings
from sparse_ncp.worker.contract import TensorRecord
from sparse_ncp.worker.records.claims import FIRST_ITERATIONS, ROW_BYTES

# Of an iteration in a checkpoint.
CHECKPOINT_ROW_BYTES = 64
# Description, settings, manifests and changes of state: of a compact result, and of one that has every file.
COMPACT_BYTES, FIXED_BYTES = 24_000, 48_000
# Diagnostics as text: of every index of a mode, and of every pair of components.
INDEX_BYTES, PAIR_BYTES = 120, 30
# Copies of the labels: as text of four bytes per character in the .npz, and for MATLAB 64 bytes for a short label.
COMPACT_LABELS, LABELS = 5, 16
# Starts that `starts: null` stands for.
MOST_STARTS = 8
# Factors in a state: themselves, those before, and their momentum.
STATE_COPIES = 3


class ResultSize(NamedTuple):
    """Largest bytes of the files of a run: those that stay, and those that exist only while it runs.

    The labels of the tensor come to these `label_copies` times.
    """

    kept: int
    working: int
    label_copies: int


def result_size(settings: Settings, tensor: TensorRecord, compact: bool = False) -> ResultSize:
    """Return the bytes that a run may store, without the labels of its tensor.

    Parameters
    ----------
    settings : Settings
        The settings of the run.
    tensor : TensorRecord
        The tensor, of which shape and type count.
    compact : bool, optional
        Whether all factors are in one file, as for tiny runs of a study.
    """
    found = np.dtype(settings.precision or tensor.dtype)
    itemsize = 4 if found.kind == "f" and found.itemsize <= 4 else 8
    factors = (sum(tensor.shape) * settings.rank) * itemsize + 128 * len(tensor.shape)
    files = 1 if compact else 3
    iterations = min(settings.stop.max_iterations, FIRST_ITERATIONS)
    text = INDEX_BYTES * sum(tensor.shape) + PAIR_BYTES * settings.rank**2
    bands = 2 * (files + 3) * factors if settings.stability else 0  # also as text
    kept = files * factors + bands + text + ROW_BYTES * iterations + (COMPACT_BYTES if compact else FIXED_BYTES)
    starts = MOST_STARTS if settings.starts is None else settings.starts
    state = (STATE_COPIES + starts) * factors + CHECKPOINT_ROW_BYTES * iterations + COMPACT_BYTES
    working = 2 * state + (files + 1) * factors  # two checkpoints, the factors of one for readers, and initial ones
    return ResultSize(kept, working, COMPACT_LABELS if compact else LABELS)
