"""Result files: every factor as `.npy`, all of them as `.npz` and `.mat`."""

import io
import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.metadata import version
from typing import Any

import numpy as np

from sparse_ncp.solvers import Stability, State
from sparse_ncp.solvers.runtime import Array
from sparse_ncp.worker.contract import JobResult, Source
from sparse_ncp.worker.errors import NotFound
from sparse_ncp.worker.store.blobs import Blobs, Disk, OpenFile
from sparse_ncp.worker.store.exports import BAND, Model, fits, read_model, to_mat, to_npz
from sparse_ncp.worker.store.manifests import Manifest, publish

ALL = "factors.npz"


def write_factors(
    blobs: Blobs,
    folder: str,
    state: State,
    result: JobResult | None = None,
    source: Source | None = None,
    compact: bool = False,
    factors: Sequence[Array] | None = None,
    stability: Stability | None = None,
) -> Manifest:
    """Publish all files of one state. Without a result they are those of a checkpoint.

    A compact result has the `.npz` alone, not flushed: the other files are made from it on request. Without `factors`
    they are those of the state, with zeros in the rows of excluded indices.
    """
    shown = result or JobResult.from_state(state.cancelled())
    described = _describe(state, shown, source) | ({} if result else {"stop_reason": "checkpoint"})
    assessed = {} if stability is None else stability.to_arrays()
    bands = {name: bound for name, bound in assessed.items() if BAND.fullmatch(name)}
    described |= {
        name: found.tolist() if found.ndim == 0 else found for name, found in assessed.items() if name not in bands
    }
    model = Model(state.whole_factors() if factors is None else factors, described, bands)
    about: dict[str, Any] = {"iteration": model.about["iteration"]}
    if compact:
        return publish(blobs, folder, [(ALL, to_npz(model))], {**about, "seconds": shown.seconds}, flush=False)
    return publish(blobs, folder, _contents(model, shown.seconds), about)


def open_result(blobs: Blobs, disk: Disk, manifest: Manifest, name: str) -> OpenFile:
    """Open a published file; where the result is compact, it may have to be made.

    Raises
    ------
    NotFound
        No result has a file of this name.
    FileNotFoundError
        The folder was withdrawn meanwhile.
    """
    iteration = manifest.about["iteration"]
    entry = manifest.files.get(name)
    if entry is not None:
        return OpenFile(blobs.open(f"{manifest.folder}/{name}"), entry.sha256, entry.nbytes, iteration)
    if "seconds" in manifest.about:
        with blobs.open(f"{manifest.folder}/{ALL}") as file:
            model = read_model(file)
        for known, content in _contents(model, manifest.about["seconds"]):
            if known == name:
                return open_scratch(disk, content, iteration)
    raise NotFound("factor", name.removesuffix(".npy"), field="mode")


def open_scratch(disk: Disk, content: bytes, iteration: int | None) -> OpenFile:
    """Open a file that is gone once it is closed."""
    file = disk.scratch_file()
    try:
        file.write(content)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return OpenFile(file, sha256(content).hexdigest(), len(content), iteration)


def _contents(model: Model, seconds: float) -> Iterator[tuple[str, bytes]]:
    for mode, A in enumerate(model.factors, start=1):
        buffer = io.BytesIO()
        np.save(buffer, A, allow_pickle=False)
        yield f"A{mode}.npy", buffer.getvalue()
    yield ALL, to_npz(model)
    if fits([*model.factors, *model.bands.values()]):
        yield "factors.mat", to_mat(model._replace(about={**model.about, "seconds": seconds}))


def _describe(state: State, result: JobResult, source: Source | None) -> dict[str, Any]:
    """Return the metadata of factors: their quality, the settings, and the tensor they belong to.

    The computing time is left out, so that the same run gives the same bytes.
    """
    found = result.model_dump(exclude={"warnings", "starts", "seconds", "stability"})
    sparsity, components, excluded = found.pop("sparsity"), found.pop("nonzero_components"), found.pop("excluded")
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
    if excluded:
        about["excluded"] = json.dumps(excluded)
    if source is not None:
        about["tensor_sha256"] = source.sha256
    if source is not None and source.axes is not None:
        about["axes"] = json.dumps([axis.model_dump() for axis in source.axes])
    return about
