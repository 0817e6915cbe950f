"""A cache of exports, plots and tables, of limited size; the least recently used answers are evicted."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256

from sparse_ncp.worker.store.blobs import Blob, Blobs, Disk, OpenFile
from sparse_ncp.worker.store.manifests import FILE, publish, read_manifest, withdraw

ROOT = "rendered"
CONTENT, MATCHES = "content", "matches.json"
# A result that is used again counts as new once it is this old: one write in that time, however often it is used.
RENEW_SECONDS = 60.0
# A small result costs an entry of the list as well: so the number of entries is bounded too.
LEAST_BYTES = 1 << 16
# Largest fraction of the quota in use after an eviction, so that not every new result evicts others.
KEPT_SHARE = 0.9


class RenderedFiles:
    """Results below `rendered/<id of a job, study or tensor>/`, each in a folder named by the digest of its inputs.

    They are not flushed: the digest has to name whatever may have lost writes, such as the start of the machine.

    Parameters
    ----------
    blobs : Blobs
        The store.
    disk : Disk
        Its disk, whose free space the results leave to tensors and jobs.
    """

    def __init__(self, blobs: Blobs, disk: Disk) -> None:
        self._blobs = blobs
        self._disk = disk

    def find(self, id: str, digest: str) -> OpenFile | None:
        """Open a result; None if it was not made yet, or has been removed."""
        folder = f"{ROOT}/{id}/{digest}"
        with suppress(FileNotFoundError):
            manifest = read_manifest(self._blobs, folder)
            if manifest is None:
                return None
            entry = manifest.files[CONTENT]
            file = self._blobs.open(f"{folder}/{CONTENT}")
            with suppress(OSError):  # a full disk, or removed meanwhile: the file is open
                self._renew(f"{folder}/{FILE}")
            return OpenFile(file, entry.sha256, entry.nbytes, manifest.about["iteration"])
        return None

    def save(self, id: str, digest: str, content: bytes, iteration: int | None) -> OpenFile:
        """Keep a result, and open it."""
        folder, about = f"{ROOT}/{id}/{digest}", {"iteration": iteration}
        publish(self._blobs, folder, [(CONTENT, content)], about, flush=False, undo=False)
        try:
            file = self._blobs.open(f"{folder}/{CONTENT}")
        except FileNotFoundError:  # removed in between, or there was a manifest without its file
            withdraw(self._blobs, folder)
            publish(self._blobs, folder, [(CONTENT, content)], about, flush=False, undo=False)
            file = self._blobs.open(f"{folder}/{CONTENT}")
        return OpenFile(file, sha256(content).hexdigest(), len(content), iteration)

    def matches(self, study_id: str) -> dict[str, float]:
        """Return factor matches between runs of a study, by the ids of both joined by a space."""
        with suppress(FileNotFoundError, ValueError), self._blobs.open(f"{ROOT}/{study_id}/{MATCHES}") as file:
            found: dict[str, float] = json.load(file)
            return found
        return {}

    def save_matches(self, study_id: str, matches: Mapping[str, float]) -> None:
        """Keep factor matches of a study, for the next time that its table is made."""
        self._blobs.put(f"{ROOT}/{study_id}/{MATCHES}", json.dumps(dict(matches)).encode(), flush=False)

    def discard(self, id: str) -> None:
        """Remove all results of a job, study or tensor that was deleted."""
        for blob in self._blobs.list(f"{ROOT}/{id}/"):
            self._blobs.delete(blob.name)

    def evict(self, max_bytes: int, min_free_bytes: int = 0) -> None:
        """Remove the least recently used results until all fit; every one if the disk has little room left.

        Parameters
        ----------
        max_bytes : int
            The quota for all results together.
        min_free_bytes : int
            The free space of the disk below which nothing is kept.
        """
        allowed = 0 if self._disk.free_bytes() < min_free_bytes else max_bytes
        entries = sorted(self._entries(), key=lambda entry: entry[1])
        total = sum(nbytes for _, _, nbytes in entries)
        goal = allowed if total <= allowed else KEPT_SHARE * allowed
        while total > goal:
            name, _, nbytes = entries.pop()
            withdraw(self._blobs, name)
            self._blobs.delete(name)
            total -= nbytes

    def _entries(self) -> Iterator[tuple[str, float, int]]:
        """Yield every folder, and every file beside them, with the time since its last use and its size."""
        folder, blobs = "", list[Blob]()
        for blob in (*self._blobs.list(f"{ROOT}/"), None):
            parts = blob.name.split("/") if blob is not None else []
            name = "/".join(parts[:3])
            if name != folder and blobs:
                nbytes = max(LEAST_BYTES, sum(one.nbytes for one in blobs))
                yield folder, min(one.age_seconds for one in blobs), nbytes
                blobs = []
            folder = name
            if blob is not None:
                blobs.append(blob)

    def _renew(self, name: str) -> None:
        """Write a small file again once it is old, so that its age is the time since its last use."""
        if self._blobs.stat(name).age_seconds > RENEW_SECONDS:
            with self._blobs.open(name) as file:
                self._blobs.put(name, file.read(), flush=False)
