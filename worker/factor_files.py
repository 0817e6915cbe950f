"""The files a lab downloads: every factor as `.npy`, all of them as `.npz` and `.mat`."""

import errno
import io
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np

from solvers import State
from solvers.arrays import Array
from worker.contract import JobResult
from worker.errors import NotFound
from worker.files import PRIVATE_FOLDER, flush_folder, full_is_store_full, remove, write_whole
from worker.outcome import result_of

ALL, MANIFEST = "factors.npz", "manifest.json"
# The .mat format of MATLAB 5 cannot hold a larger variable.
MAT_LIMIT = (1 << 31) - 1


@dataclass(frozen=True)
class FactorsFile:
    """A stored file, its digest known since it was written."""

    path: Path
    sha256: str
    nbytes: int


def write_factors(folder: Path, state: State, result: JobResult | None = None) -> None:
    """All files of one state; the folder appears whole or not at all. Without a result they are a checkpoint's."""
    with full_is_store_full():
        aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        aside.mkdir(PRIVATE_FOLDER)  # not its parents: a job that was deleted meanwhile stays deleted
        try:
            _write_all(aside, state, result)
            _put_in_place(aside, folder)
        finally:
            remove(aside)  # on a full disk above all


def _write_all(folder: Path, state: State, result: JobResult | None) -> None:
    manifest = {}
    for name, content in _contents(state.factors, _metrics(state, result)):
        write_whole(folder / name, content)
        manifest[name] = {"sha256": sha256(content).hexdigest(), "nbytes": len(content)}
    write_whole(folder / MANIFEST, json.dumps(manifest).encode())


def find(folder: Path, name: str) -> FactorsFile:
    """The file called `name`. NotFound if there never is one in such a folder, FileNotFoundError if it is gone."""
    entry = json.loads((folder / MANIFEST).read_text()).get(name)
    if entry is None:
        raise NotFound("factor", name.removesuffix(".npy"), field="mode")
    return FactorsFile(folder / name, entry["sha256"], entry["nbytes"])


def read_factors(path: Path) -> list[Array]:
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[f"A{mode}"] for mode in range(1, len(arrays) + 1)]


def _contents(factors: Sequence[Array], metrics: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    named = {f"A{mode}": A for mode, A in enumerate(factors, start=1)}
    for name, A in named.items():
        buffer = io.BytesIO()
        np.save(buffer, A, allow_pickle=False)
        yield f"{name}.npy", buffer.getvalue()
    buffer = io.BytesIO()
    np.savez(buffer, **dict[str, Any](named))
    yield ALL, buffer.getvalue()
    # Takes a third of a second to load: only a process that writes such a file should pay for it.
    import scipy.io

    if all(A.nbytes < MAT_LIMIT for A in factors):
        buffer = io.BytesIO()
        scipy.io.savemat(cast(Any, buffer), {**named, **metrics}, oned_as="column")
        yield "factors.mat", buffer.getvalue()


def _metrics(state: State, result: JobResult | None) -> dict[str, Any]:
    """As MATLAB reads them: numbers are doubles, lists are columns."""
    found = result or result_of(state.cancelled())
    counts = found.nonzero_components
    return {
        "objective": found.objective,
        "relative_error": found.relative_error,
        "fit": found.fit,
        "iterations": float(found.iterations),
        "seconds": found.seconds,
        "stop_reason": found.stop_reason if result else "checkpoint",
        "weights": np.array(found.weights),
        "sparsity": np.array(found.sparsity.per_mode),
        "relative_sparsity": np.array(found.sparsity.relative_per_mode),
        "nonzero_components": np.array(counts.per_mode, np.float64),
        "nonzero_components_all_modes": float(counts.all_modes),
    }


def _put_in_place(aside: Path, folder: Path) -> None:
    """Whoever is first wins: the same state gives the same factors."""
    try:
        aside.rename(folder)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
    flush_folder(folder.parent)
