"""How much memory a run will take, told before it starts."""

import math
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from solvers.compress import EXTRA
from solvers.door import check_form, is_copied, working_precision
from solvers.halves import split_point
from solvers.nndsvd import EXTRA as SVD_EXTRA
from solvers.parallel import available_cores
from solvers.settings import Settings
from solvers.tensor import GROUPS, TILE


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes beyond the tensor itself: its one converted copy (zero if it can be used as it is), and the work arrays."""

    copy: int
    work: int

    @property
    def total(self) -> int:
        return self.copy + self.work


def estimate_memory(tensor: NDArray[Any], settings: Settings) -> MemoryEstimate:
    """An upper estimate, from type, shape and layout alone: no entry is read, so a memory map stays untouched."""
    check_form(tensor)
    itemsize = working_precision(tensor, settings.precision).itemsize
    cut = split_point(tensor.shape)
    halves = math.prod(tensor.shape[:cut]), math.prod(tensor.shape[cut:])
    # Each half's Khatri-Rao product and partial result, and one more level of the dimension tree.
    partial = 3 * sum(halves) * settings.rank * itemsize
    # The factor, MTTKRP, right-hand side, start and solution of a mode in float64; factors of this and the last state.
    blocks = (8 * max(tensor.shape) + 4 * sum(tensor.shape)) * settings.rank * 8
    tiles = 4 * TILE * 8 * available_cores()
    sketch = 0 if settings.accelerate == "none" else (settings.rank + EXTRA) * tensor.size // max(tensor.shape) * 8
    vectors = (GROUPS + 8) * max(tensor.shape) * (settings.rank + SVD_EXTRA) * 8 if settings.init == "nndsvd" else 0
    copy = tensor.size * itemsize if is_copied(tensor, settings.precision) else 0
    return MemoryEstimate(copy=copy, work=partial + blocks + tiles + 4 * sketch + vectors)
