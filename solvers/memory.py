"""Estimate the memory a run will need, before it starts."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.starts.initial import SVD_OVERSAMPLES
from sparse_ncp.solvers.bcd.starts.trials import STARTS, most_finalists
from sparse_ncp.solvers.diagnostics.core_consistency import LARGEST_CORE
from sparse_ncp.solvers.diagnostics.outliers import search_bytes
from sparse_ncp.solvers.diagnostics.stability import SPLITS
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.tensor.compressed import sketch_bytes
from sparse_ncp.solvers.tensor.dense import GROUPS, MANY_ENTRIES, SINGLE_BYTES, TILE
from sparse_ncp.solvers.tensor.exclusion import Exclusion
from sparse_ncp.solvers.tensor.gemm.blocks import best_split, block_sizes, split_point
from sparse_ncp.solvers.tensor.gemm.out_of_core import READ_BYTES, READERS, STREAM_TILE_BYTES, FileEntries
from sparse_ncp.solvers.tensor.missing.masked import TILE as MASKED_TILE
from sparse_ncp.solvers.tensor.missing.pattern import LONGEST_LIST
from sparse_ncp.solvers.tensor.products import HELD
from sparse_ncp.solvers.tensor.threads import available_cores
from sparse_ncp.solvers.tensor.validation import (
    check_mask,
    check_shape_and_dtype,
    is_copied,
    is_masked_out,
    working_precision,
)


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a run needs besides the tensor itself.

    Attributes
    ----------
    copy : int
        Copies of the tensor in the working precision, or with `accelerate="float32"` in single precision.
    work : int
        Work arrays.
    total : int
        Both together.

    Examples
    --------
    >>> from sparse_ncp import MemoryEstimate
    >>> MemoryEstimate(copy=800, work=200).total
    1000
    """

    copy: int
    work: int

    @property
    def total(self) -> int:
        return self.copy + self.work


def estimate_memory(
    tensor: NDArray[Any], settings: Settings, *, mask: NDArray[np.bool_] | None = None, missing: int | None = None
) -> MemoryEstimate:
    """Estimate from above how much memory a run needs, without reading an entry.

    Parameters
    ----------
    tensor : numpy.ndarray
        The tensor, which may be a memory map. Only its type, shape and memory order are used.
    settings : Settings
        The settings of the run.
    mask : numpy.ndarray of bool, optional
        True where an entry is observed.
    missing : int, optional
        How many entries are NaN, if known.

    Returns
    -------
    MemoryEstimate
        Bytes for copies and for work arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse_ncp import Settings, estimate_memory
    >>> estimate_memory(np.zeros((30, 20, 10)), Settings(rank=3, method="hals")).copy
    0
    """
    check_shape_and_dtype(tensor)
    itemsize = working_precision(tensor, settings.precision).itemsize
    cut = split_point(tensor.shape)
    halves = math.prod(tensor.shape[:cut]), math.prod(tensor.shape[cut:])
    # Each half's Khatri-Rao product and partial result, and one more level of the dimension tree.
    is_reversed = tensor.flags.f_contiguous and not tensor.flags.c_contiguous
    stored = tensor.shape[:: -1 if is_reversed else 1]
    before, inner, after = block_sizes(stored, best_split(stored))
    partial = 3 * (before * after + inner) * settings.rank * itemsize
    # A residual has products of both halves, or for long ones parts of them on every thread.
    parts = max(HELD, 3 * available_cores() * TILE * settings.rank)
    partial += sum(min(half * settings.rank, parts) for half in halves) * 8
    # The factor, MTTKRP, right-hand side and solution of a mode in float64; factors of this and the last state.
    blocks = (7 * max(tensor.shape) + 4 * sum(tensor.shape)) * settings.rank * 8
    # Factors of the previous sweep, the extrapolated ones, and those of every start that may still be continued.
    kept = most_finalists(settings.starts, settings.starts_mode == "all")
    sets = 3 * (settings.extrapolate is not False) + (0 if settings.starts == 1 else kept + 2)
    # The other starts, in single precision until one is chosen.
    sets += 0 if settings.starts == 1 else (STARTS if settings.starts is None else settings.starts) // 2
    # Regrowth: the active columns and the new ones in double precision, and the stacked factors.
    sets += 4 * (settings.regrow is not False)
    carried = sets * sum(tensor.shape) * settings.rank * 8
    tiles = 4 * TILE * 8 * available_cores()
    # With accelerate="auto", the copy in single precision is no larger than the sketch, which is freed by then.
    sketch = sketch_bytes(tensor.shape, settings.rank) if settings.accelerate in ("auto", "compress") else 0
    vectors = (
        (GROUPS + 8) * max(tensor.shape) * (settings.rank + SVD_OVERSAMPLES) * 8 if settings.init == "nndsvd" else 0
    )
    if vectors and tensor.size > MANY_ENTRIES:  # a part of the matrix between the two products of a long mode
        vectors += 2 * STREAM_TILE_BYTES
    # The diagnostics start when all this is freed, and their products of factors and tiles are no larger. They add sums
    # and positions for both halves of the modes, sums of about a tile or per thread, and a core per part, all in double
    # precision.
    longest = min(max(halves), TILE)
    sums = (2 * sum(halves) + min(GROUPS * longest, TILE) + (2 * available_cores() + 1) * longest) * 8
    core = settings.rank**tensor.ndim
    cores = (GROUPS + 4 * available_cores()) * core * 8 if core <= LARGEST_CORE else 0
    diagnostics = sums + cores if settings.diagnose else 0
    # Stability keeps the loadings of every fit, and these in the order of the model; sums over slices, per half.
    fits = 2 * (settings.resamples + 2 * SPLITS) * sum(tensor.shape) * settings.rank * 8
    stability = fits + 3 * max(halves) * 8 if settings.stability else 0
    exclusion = Exclusion.of(settings.exclude, tensor.shape)
    if exclusion:  # the slice of an excluded index
        diagnostics += 2 * tensor.nbytes // min(tensor.shape)
    is_masked = is_masked_out(tensor, exclusion, settings.precision)
    gaps = _gaps_bytes(tensor, settings, exclusion.masked(mask) if is_masked else mask, missing)
    # A file that does not fit into memory is read through two tiles of up to twice the nominal size, by another pass
    # at the same time through two runs, and by both through a buffer per reader.
    is_streamed = FileEntries.of(np.ma.getdata(tensor)) is not None
    slabs = 6 * min(tensor.nbytes, STREAM_TILE_BYTES) + 2 * READERS * READ_BYTES if is_streamed else 0
    copy = tensor.size * itemsize if is_copied(np.ma.getdata(tensor), settings.precision) else 0
    if exclusion and not is_masked and not exclusion.is_view(tensor):
        copy += math.prod(exclusion.kept_shape) * tensor.itemsize
    if exclusion and mask is not None:
        copy += mask.nbytes
    if settings.accelerate == "float32" and itemsize > SINGLE_BYTES:
        copy += tensor.size * SINGLE_BYTES
    run = partial + blocks + carried + tiles + sketch + vectors + diagnostics + stability
    # Outlying samples are looked for at the end, when all this but the factors is freed.
    mode = min(settings.samples_mode, tensor.ndim) - 1
    search = search_bytes(tensor.shape, mode, settings.rank, gaps > 0, available_cores()) if settings.diagnose else 0
    work = max(run, blocks + search) + gaps + slabs
    return MemoryEstimate(copy=copy, work=work)


def _gaps_bytes(tensor: NDArray[Any], settings: Settings, mask: NDArray[np.bool_] | None, missing: int | None) -> int:
    """Return the additional bytes for missing entries, whatever their pattern."""
    has_nan = settings.missing == "nan" and missing != 0 and tensor.dtype.kind == "f"
    has_mask = mask is not None or np.ma.is_masked(tensor) or settings.zeros == "missing"
    if not (has_nan or has_mask):
        return 0
    rank, entries = settings.rank, tensor.size
    lengths = tensor.shape
    if mask is not None and not has_nan and not np.ma.is_masked(tensor) and settings.zeros == "readings":
        lengths = tuple(ours for ours in check_mask(mask, tensor.shape).shape if ours > 1) or (1,)
    cut = split_point(lengths) if len(lengths) > 1 else 1
    halves = math.prod(lengths[:cut]), math.prod(lengths[cut:])
    # The dimension tree over the mask: as for the tensor, with a column for every pair of components.
    pairs = rank * (rank + 1) // 2
    tree = (3 * sum(halves) + 2 * sum(lengths)) * pairs * 8
    # A Gram per row, in each step: formed, penalised, scaled and solved.
    rows = 6 * max(tensor.shape) * rank**2 * 8
    # For every mode, where entries are missing all along it; the pattern that is kept, and its bits twice; the list of
    # exceptions.
    pattern = 2 * sum(entries // length for length in tensor.shape) + entries // 2 + 2 * (entries // 8)
    listed = int(LONGEST_LIST * entries) * tensor.ndim * 24
    tiles = 4 * MASKED_TILE * 8 * available_cores()
    masks = 3 * entries if has_mask else 0
    return int(tree + rows + pattern + listed + tiles + masks)
