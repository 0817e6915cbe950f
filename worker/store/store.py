"""The arrays and files of one server, on any `Blobs`: tensors under their SHA-256, and the files of every job."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from numpy.typing import NDArray

from sparse_ncp.solvers.runtime import OnProgress, Scan
from sparse_ncp.worker.errors import NotFound
from sparse_ncp.worker.store.blobs import Blobs, Disk, OpenFile, StoredItem
from sparse_ncp.worker.store.copies import IsUnused
from sparse_ncp.worker.store.job_files import JobFiles
from sparse_ncp.worker.store.manifests import withdraw
from sparse_ncp.worker.store.rendered import ROOT as RENDERED
from sparse_ncp.worker.store.rendered import RenderedFiles
from sparse_ncp.worker.store.results import open_scratch
from sparse_ncp.worker.store.tensors import Tensors, Upload

JOB_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


class Store:
    """Tensors and the files of jobs. It hands out arrays and open files, never paths.

    Parameters
    ----------
    blobs : Blobs
        Where everything is stored.
    disk : Disk
        The disk of this machine, which uploads and exports pass through.
    deferred : bool, optional
        If True, the files of jobs are durable only after `flush`.
    """

    def __init__(self, blobs: Blobs, disk: Disk, deferred: bool = False) -> None:
        self._blobs = blobs
        self._disk = disk
        self._deferred = deferred
        self._tensors = Tensors(blobs)
        self.rendered = RenderedFiles(blobs, disk)

    # Tensors

    def upload(self) -> Upload:
        """Receive a tensor."""
        return self._tensors.upload()

    def open_tensor(self, sha256: str) -> NDArray[Any]:
        """Return a read-only array, whose entries are read when they are used."""
        return self._tensors.open_array(sha256)

    def open_content(self, sha256: str) -> OpenFile:
        """Open the `.npy` file as it was uploaded."""
        return self._tensors.open_content(sha256)

    def summary(self, sha256: str) -> bytes | None:
        """Return the summary of a tensor; None if there is none, or if it is damaged."""
        return self._tensors.summary(sha256)

    def save_summary(self, sha256: str, content: bytes) -> None:
        """Save a summary, which is kept as long as its tensor. Does nothing if the tensor was deleted."""
        self._tensors.save_summary(sha256, content)

    def zeros(self, sha256: str) -> bytes | None:
        """Return the report on the zeros of a tensor; None if there is none, or if it is damaged."""
        return self._tensors.zeros(sha256)

    def save_zeros(self, sha256: str, content: bytes) -> None:
        """Save a report on zeros, which is kept as long as its tensor. Does nothing if the tensor was deleted."""
        self._tensors.save_zeros(sha256, content)

    def verify_tensor(
        self,
        sha256: str,
        threads: int | None = None,
        on_progress: OnProgress | None = None,
        valid_seconds: float = math.inf,
    ) -> Scan | None:
        """Check that the bytes are those that were uploaded, and return the result of a scan, if one was made.

        A check of unchanged bytes is valid for `valid_seconds`.

        Raises
        ------
        CorruptFile
            The bytes were altered.
        """
        return self._tensors.verify(sha256, threads, on_progress, valid_seconds)

    def remove_tensor(self, sha256: str, is_unused: IsUnused) -> bool:
        """Remove the bytes unless a record names them, or an upload that is adding its record."""
        return self._tensors.copies.remove(sha256, is_unused)

    # Jobs

    def job(self, job_id: str) -> JobFiles:
        """Return the files of a job."""
        if not JOB_ID.fullmatch(job_id):  # ids come from records, never from callers; a second line of defence
            raise NotFound("job", job_id)
        return JobFiles(self._blobs, self._disk, job_id, self._deferred)

    def deferred(self) -> "Store":
        """Return the same store for many small jobs: their files are durable once `flush` has returned."""
        return Store(self._blobs, self._disk, deferred=True)

    def flush(self) -> None:
        """Flush everything that was written."""
        self._blobs.flush()

    def remove_job(self, job_id: str) -> None:
        """Remove the files of a job whose record is gone."""
        self.job(job_id).remove()
        self.rendered.discard(job_id)

    def scratch(self, content: bytes, iteration: int | None) -> OpenFile:
        """Open a file with this content that is gone once it is closed; it may have the factors of an iteration."""
        return open_scratch(self._disk, content, iteration)

    # Contents and capacity

    def find(self, kind: Literal["job", "content"], id: str) -> StoredItem | None:
        """Describe the files of a job and its exports, or a tensor by its SHA-256; None if there is nothing."""
        if kind == "content":
            return self._tensors.item(id)
        nbytes = [blob.nbytes for root in ("jobs", RENDERED) for blob in self._blobs.list(f"{root}/{id}/")]
        return StoredItem(f"jobs/{id}", sum(nbytes)) if nbytes else None

    def abandoned_uploads(self) -> list[StoredItem]:
        """List the remains of uploads whose process died. Those with a digest may have no record."""
        found = []
        for blob in self._disk.unfinished():
            if blob.name.startswith("uploads/"):
                digest = blob.name.rpartition(".")[2]  # of a marker, as uploads left them before there were pins
                found.append(StoredItem(blob.name, blob.nbytes, digest if len(digest) == 64 else None))
        return [*found, *self._tensors.copies.abandoned()]

    def interrupted_writes(self) -> list[StoredItem]:
        """List unfinished files of jobs whose process died."""
        unfinished = (blob for blob in self._disk.unfinished() if not blob.name.startswith("uploads/"))
        found = [StoredItem(blob.name, blob.nbytes) for blob in unfinished]
        return [*found, *(item for id in self._job_ids() for item in self.job(id).half_written())]

    def superseded(self) -> list[tuple[str, StoredItem]]:
        """List files beside the final factors of jobs, by job id. Those of an ended job were written too late."""
        return [(id, item) for id in self._job_ids() for item in self.job(id).superseded()]

    def remove_leftover(self, item: StoredItem) -> None:
        """Remove an item that one of the three methods above has listed."""
        folder, *names = item.name.split("/")
        if folder == "tensors" and not names[-1].startswith("."):
            self._blobs.delete(item.name)
        elif folder == "jobs" and not any(name.startswith(".") for name in names):
            withdraw(self._blobs, item.name)
            self._blobs.delete(item.name)
        else:
            self._disk.discard(item.name)

    def free_bytes(self) -> int:
        """Return how many bytes of the disk are free."""
        return self._disk.free_bytes()

    def total_bytes(self) -> int:
        """Return the size of the disk."""
        return self._disk.total_bytes()

    def check_writable(self) -> None:
        """Raise StoreFull or StoreUnavailable if nothing can be written, which is found out by writing a file."""
        self._disk.check_writable()

    def stored_bytes(self) -> Mapping[str, int]:
        """Return the bytes of tensors, jobs and uploads. Takes about a second for a hundred thousand files."""
        sizes = {kind: sum(blob.nbytes for blob in self._blobs.list(f"{kind}/")) for kind in ("tensors", "jobs")}
        return {**sizes, "uploads": self._disk.unfinished_bytes()}

    def _job_ids(self) -> Iterator[str]:
        last = ""
        for blob in self._blobs.list("jobs/"):
            id = blob.name.split("/")[1]
            if id != last and JOB_ID.fullmatch(id):
                last = id
                yield id
