"""Result files: every factor as `.npy`, all of them as `.npz` and `.mat`."""

import errno
import io
import json
import secrets
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from sparse_ncp.solvers import State
from sparse_ncp.worker.contract import JobResult, Source
from sparse_ncp.worker.errors import NotFound
from sparse_ncp.worker.store.exports import Model, fits, read_model, to_mat, to_npz
from sparse_ncp.worker.store.files import (
    PRIVATE_FOLDER,
    atomic_write,
    fsync_folder,
    remove,
    temporary_file,
    translate_storage_errors,
)
from sparse_ncp.worker.store.store import OpenFile

ALL, MANIFEST = "factors.npz", "manifest.json"
# In the manifest of a compact result, in place of the files that are made on request.
COMPACT = "compact"


def write_factors(
    folder: Path, state: State, result: JobResult | None = None, source: Source | None = None, compact: bool = False
) -> None:
    """Write all files of one state; the folder appears whole or not at all. Without a result it is a checkpoint's.

    A compact one has the `.npz` alone, not flushed: the other files are made of it when they are asked for.
    """
    with translate_storage_errors():
        aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        aside.mkdir(PRIVATE_FOLDER)  # not its parents: a job that was deleted meanwhile stays deleted
        try:
            shown = result or JobResult.from_state(state.cancelled())
            about = _about(state, shown, source) | ({} if result else {"stop_reason": "checkpoint"})
            _write_all(aside, Model(state.outcome()[0], about), shown.seconds, compact)
            _put_in_place(aside, folder, flush=not compact)
        finally:
            remove(aside)  # what is left after a failure, such as a full disk


def _write_all(folder: Path, model: Model, seconds: float, compact: bool) -> None:
    manifest: dict[str, Any] = {COMPACT: {"seconds": seconds}} if compact else {}
    iteration = model.about["iteration"]
    contents = [(ALL, to_npz(model))] if compact else _contents(model, seconds)
    for name, content in contents:
        atomic_write(folder / name, content, flush=not compact)
        manifest[name] = {"sha256": sha256(content).hexdigest(), "nbytes": len(content), "iteration": iteration}
    atomic_write(folder / MANIFEST, json.dumps(manifest).encode(), flush=not compact)


def open_result(folder: Path, name: str) -> OpenFile:
    """Open the file called `name`. NotFound if no such folder has one, FileNotFoundError if it was removed."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except json.JSONDecodeError as error:  # power failed before a compact result was flushed: its run goes on
        raise FileNotFoundError(name) from error
    entry = manifest.get(name)
    if entry is not None:
        return OpenFile((folder / name).open("rb"), entry["sha256"], entry["nbytes"], entry.get("iteration"))
    made = _made(folder, name, manifest[COMPACT]["seconds"]) if COMPACT in manifest else None
    if made is None:
        raise NotFound("factor", name.removesuffix(".npy"), field="mode")
    return OpenFile(temporary_file(folder, made), sha256(made).hexdigest(), len(made), manifest[ALL]["iteration"])


def _made(folder: Path, name: str, seconds: float) -> bytes | None:
    """A file of a compact result, as it would have been stored; None if there would have been none."""
    with (folder / ALL).open("rb") as file:
        model = read_model(file)
    return next((content for known, content in _contents(model, seconds) if known == name), None)


def _contents(model: Model, seconds: float) -> Iterator[tuple[str, bytes]]:
    for mode, A in enumerate(model.factors, start=1):
        buffer = io.BytesIO()
        np.save(buffer, A, allow_pickle=False)
        yield f"A{mode}.npy", buffer.getvalue()
    yield ALL, to_npz(model)
    if fits(model.factors):
        yield "factors.mat", to_mat(model._replace(about={**model.about, "seconds": seconds}))


def _about(state: State, result: JobResult, source: Source | None) -> dict[str, Any]:
    """What explains the factors: what they are worth, what was asked, and of which tensor they are.

    Not what they took: the same run shall give the same bytes.
    """
    found = result.model_dump(exclude={"warnings", "starts", "seconds"})
    sparsity, components = found.pop("sparsity"), found.pop("nonzero_components")
    about = {
        **found,
        "weights": np.array(found["weights"]),
        "components": np.arange(1, len(found["weights"]) + 1),
        "scale": "none",
        "sparsity": np.array(sparsity["per_mode"]),
        "relative_sparsity": np.array(sparsity["relative_per_mode"]),
        "nonzero_components": np.array(components["per_mode"]),
        "nonzero_components_all_modes": components["all_modes"],
        "iteration": state.iteration,
        "settings": state.settings.model_dump_json(),
        "tensor_norm": state.tensor_norm,
        "version": version("sparse-ncp"),
    }
    if source is not None:
        about["tensor_sha256"] = source.sha256
    if source is not None and source.axes is not None:
        about["axes"] = json.dumps([axis.model_dump() for axis in source.axes])
    return about


def _put_in_place(aside: Path, folder: Path, flush: bool) -> None:
    """Rename, unless another was first: the same state gives the same factors."""
    try:
        aside.rename(folder)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
    if flush:
        fsync_folder(folder.parent)
