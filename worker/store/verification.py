"""Whether a tensor's bytes are those that were uploaded, and what they hold: remembered while the file is unchanged."""

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
from sparse_ncp.worker.errors import BadTensor
from sparse_ncp.worker.store.npy_validation import open_array, read_header

# Of a smaller file a check takes hundredths of a second, and is not remembered.
LEAST_BYTES = 1 << 24
# What a disk spoils without changing the times of the file is noticed after so long at the latest.
VALID_SECONDS = 7 * 86400.0
# A file that was changed so shortly before it was looked at might be changed again at what is the same time to the file
# system, whose clock has ticks.
SETTLED_NANOSECONDS = 10**8
# Of the scan's numbers: those of another format are not believed.
FORMAT = 1


@dataclass(frozen=True)
class FileIdentity:
    """What changes when a file is changed, replaced or restored."""

    inode: int
    nbytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, file: Path | int) -> "FileIdentity":
        found = os.stat(file)
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @property
    def is_telling(self) -> bool:
        """Whether a change from now on must show. Not where the file system counts in whole seconds."""
        return self.mtime_ns % 10**9 != 0 and time.time_ns() - self.mtime_ns >= SETTLED_NANOSECONDS


@dataclass(frozen=True)
class Verified:
    """That a file had the digest of its name, and what was found in it."""

    file: FileIdentity
    checked_at: float
    machine: str
    scan: Scan

    @classmethod
    def now(cls, file: FileIdentity, found: Scan) -> "Verified":
        return cls(file, time.time(), machine_signature(), found)

    def holds_for(self, file: FileIdentity) -> bool:
        """Whether the file need not be read again."""
        return file == self.file and 0 <= time.time() - self.checked_at < VALID_SECONDS

    @property
    def known(self) -> Scan | None:
        """What a scan would find here, to the last bit; None if another kind of machine has found it."""
        return self.scan if self.machine == machine_signature() else None

    def to_bytes(self, sha256: str) -> bytes:
        """Sealed by a digest, which covers whose tensor it is of: a damaged one, or another's, is not believed."""
        content = json.dumps({"format": FORMAT, "sha256": sha256, **asdict(self)}).encode()
        return hashlib.sha256(content).hexdigest().encode() + b"\n" + content

    @classmethod
    def from_bytes(cls, sealed: bytes, sha256: str) -> "Verified | None":
        digest, _, content = sealed.partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != digest:
            return None
        fields: dict[str, Any] = json.loads(content)
        if (fields.pop("format"), fields.pop("sha256")) != (FORMAT, sha256):
            return None
        numbers = fields["scan"]
        kinds = {kind: Occurrence(numbers[kind]["count"], tuple(numbers[kind]["first"])) for kind in KINDS}
        return cls(
            FileIdentity(**fields["file"]), fields["checked_at"], fields["machine"], Scan(**{**numbers, **kinds})
        )


KINDS = ("nan", "infinite", "negative")


def verify(path: Path, sha256: str, threads: int | None, on_progress: OnProgress) -> Verified | None:
    """Read the file once: hash a stretch while the one before is scanned. None if it has another digest."""
    with path.open("rb", buffering=0) as file:
        before = FileIdentity.of(file.fileno())
        try:
            header, tensor = read_header(path), open_array(path)
        except BadTensor:
            return None
        digest = hashlib.sha256(file.read(header.offset))
        buffers = [np.empty(min(tensor.size, CHUNK * CHUNKS_PER_RUN), header.dtype) for _ in range(2)]

        def read(stretch: slice) -> NDArray[Any]:
            entries = buffers[0][: stretch.stop - stretch.start]
            buffers.reverse()
            content = rest = entries.view(np.uint8).data
            while rest and (count := file.readinto(rest)):
                rest = rest[count:]
            digest.update(content)
            return entries

        with Threads(threads) as pool, single_threaded_blas():
            found = scan(tensor, pool, read=read, on_progress=on_progress)
        if digest.hexdigest() != sha256:
            return None
    return Verified.now(before, found)
