"""Groups of files that appear together: blobs in one folder, published by a manifest that is written last."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from sparse_ncp.worker.store.blobs import Blobs

FILE = "manifest.json"
# A later format than this was written by a later release, and is taken for absent.
FORMAT = 1


class Entry(NamedTuple):
    """The digest and length of one file."""

    sha256: str
    nbytes: int


@dataclass(frozen=True)
class Manifest:
    """The files of a published folder by name, and further JSON values from its writer."""

    folder: str
    files: Mapping[str, Entry]
    about: Mapping[str, Any] = field(default_factory=dict)


def publish(
    blobs: Blobs,
    folder: str,
    files: Iterable[tuple[str, bytes]],
    about: Mapping[str, Any] | None = None,
    flush: bool = True,
    undo: bool = True,
) -> Manifest:
    """Write files into a folder and then the manifest that makes them visible.

    Parameters
    ----------
    blobs : Blobs
        The store.
    folder : str
        The folder. If it is published already, nothing is written.
    files : iterable of (str, bytes)
        Names and contents, which are read one after another.
    about : mapping, optional
        JSON values for the manifest.
    flush : bool, optional
        Whether the files are durable on return, or only after the store's next flush.
    undo : bool, optional
        Whether to delete the written files if writing fails. False if others may be publishing the same folder.

    Returns
    -------
    Manifest
        The manifest as it was published first.
    """
    published = read_manifest(blobs, folder)
    if published is not None:
        return published
    written: dict[str, Entry] = {}
    try:
        for name, content in files:
            blobs.put(f"{folder}/{name}", content, flush=flush)
            written[name] = Entry(sha256(content).hexdigest(), len(content))
        entries = {name: entry._asdict() for name, entry in written.items()}
        manifest = {"format": FORMAT, "files": entries, "about": about or {}}
        blobs.put(f"{folder}/{FILE}", json.dumps(manifest).encode(), flush=flush)
    except BaseException:
        with suppress(OSError):
            if undo:
                withdraw(blobs, folder)
        raise
    return Manifest(folder, written, about or {})


def read_manifest(blobs: Blobs, folder: str) -> Manifest | None:
    """Return the manifest of a folder, or None if nothing is published there.

    A manifest that is not valid JSON was lost in a power cut before it was flushed, and does not count.
    """
    try:
        with blobs.open(f"{folder}/{FILE}") as file:
            found = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    if "format" not in found:  # from before there were formats: entries by name, and the seconds of a compact result
        about = {"seconds": found.pop("compact")["seconds"]} if "compact" in found else {}
        iterations = [entry.get("iteration") for entry in found.values()]
        files = {name: Entry(entry["sha256"], entry["nbytes"]) for name, entry in found.items()}
        return Manifest(folder, files, {**about, "iteration": iterations[0]})
    if found["format"] > FORMAT:
        return None
    files = {name: Entry(**entry) for name, entry in found["files"].items()}
    return Manifest(folder, files, found["about"])


def withdraw(blobs: Blobs, folder: str) -> None:
    """Delete a folder, its manifest first, so that no reader sees an incomplete one."""
    blobs.delete(f"{folder}/{FILE}")
    for blob in blobs.list(f"{folder}/"):
        blobs.delete(blob.name)
