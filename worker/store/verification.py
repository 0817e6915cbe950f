"""Check that a tensor's bytes are those that were uploaded, and remember it while they are unchanged."""

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.runtime import (
    CHUNK,
    CHUNKS_PER_RUN,
    Occurrence,
    OnProgress,
    Scan,
    Threads,
    machine_signature,
    scan,
    single_threaded_blas,
)
from sparse_ncp.worker.store.blobs import Blob
from sparse_ncp.worker.store.npy_validation import read_header

# Checking a smaller file takes hundredths of a second, and is not remembered.
LEAST_BYTES = 1 << 24
# The version of the notes; those of another one are ignored.
FORMAT = 2


@dataclass(frozen=True)
class Verified:
    """A note that a blob had the digest of its tensor, with the result of a scan."""

    blob: str
    version: str
    checked_at: float
    machine: str
    scan: Scan

    @classmethod
    def now(cls, blob: Blob, found: Scan) -> "Verified | None":
        """Return a note for now; None if a later change of the blob could go unnoticed."""
        return None if blob.version is None else cls(blob.name, blob.version, time.time(), machine_signature(), found)

    def holds_for(self, blob: Blob, valid_seconds: float) -> bool:
        """Return whether the blob need not be read again: it has not changed, and was checked recently enough."""
        same = (blob.name, blob.version) == (self.blob, self.version)
        return same and 0 <= time.time() - self.checked_at < valid_seconds

    @property
    def known(self) -> Scan | None:
        """The result of the scan, exact to the last bit; None if another kind of machine made it."""
        return self.scan if self.machine == machine_signature() else None

    def to_bytes(self, sha256: str) -> bytes:
        """Return the note as JSON after a digest, so that a damaged note, or one of another tensor, is ignored."""
        content = json.dumps({"format": FORMAT, "sha256": sha256, **asdict(self)}).encode()
        return hashlib.sha256(content).hexdigest().encode() + b"\n" + content

    @classmethod
    def from_bytes(cls, sealed: bytes, sha256: str) -> "Verified | None":
        """Read what `to_bytes` wrote; None if it is damaged, of another tensor or of another version."""
        digest, _, content = sealed.partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != digest:
            return None
        fields: dict[str, Any] = json.loads(content)
        if (fields.pop("format"), fields.pop("sha256")) != (FORMAT, sha256):
            return None
        numbers = fields["scan"]
        kinds = {kind: Occurrence(numbers[kind]["count"], tuple(numbers[kind]["first"])) for kind in KINDS}
        return cls(**{**fields, "scan": Scan(**{**numbers, **kinds})})


KINDS = ("nan", "infinite", "negative")


def verify(
    file: BinaryIO, tensor: NDArray[Any], sha256: str, threads: int | None = None, on_progress: OnProgress | None = None
) -> Scan | None:
    """Read a `.npy` file once: hash a stretch while the one before is scanned.

    Parameters
    ----------
    file : BinaryIO
        The file, at its beginning.
    tensor : ndarray
        The array in it, whose entries are not read.
    sha256 : str
        The digest that the file should have.
    threads : int, optional
        How many threads scan.
    on_progress : callable, optional
        Called with the fraction that was read.

    Returns
    -------
    Scan or None
        None if the file has another digest.
    """
    header = read_header(file)
    file.seek(0)
    digest = hashlib.sha256(file.read(header.offset))
    buffers = [np.empty(min(tensor.size, CHUNK * CHUNKS_PER_RUN), tensor.dtype) for _ in range(2)]

    def read(stretch: slice) -> NDArray[Any]:
        entries = buffers[0][: stretch.stop - stretch.start]
        buffers.reverse()
        content = rest = entries.view(np.uint8).data
        while rest and (count := file.readinto(rest)):  # type: ignore[attr-defined]
            rest = rest[count:]
        digest.update(content)
        return entries

    with Threads(threads) as pool, single_threaded_blas():
        found = scan(tensor, pool, read=read, on_progress=on_progress)
    return found if digest.hexdigest() == sha256 else None
