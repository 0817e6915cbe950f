"""A store in a folder of this machine, or of a file system that all machines of the server share."""

import errno
import hashlib
import logging
import re
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from sparse_ncp.solvers.runtime import OnProgress, Scan
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import CorruptFile, NotFound, StoreFull, StoreUnavailable
from sparse_ncp.worker.store.files import (
    atomic_write,
    flush_all,
    locked,
    private_file,
    private_folder,
    remove,
    sha256_of,
    size_of,
    translate_storage_errors,
)
from sparse_ncp.worker.store.history import COLLECTED
from sparse_ncp.worker.store.job_files import JobFolder
from sparse_ncp.worker.store.npy_validation import open_array
from sparse_ncp.worker.store.store import IsUnused, OpenFile, Store, StoredItem
from sparse_ncp.worker.store.uploads import LocalUpload, kept_digest
from sparse_ncp.worker.store.verification import LEAST_BYTES, FileIdentity, Verified, verify

PLAIN = re.compile(r"[A-Za-z0-9-]{1,64}")
# An upload that was begun just now may not be locked yet.
UNLOCKED_SECONDS = 60.0
# No living attempt leaves a file that it is writing untouched for so long.
WRITING_SECONDS = 3600.0
KINDS = ("tensors", "jobs", "uploads")
log = logging.getLogger("ncp.store")


class LocalStore(Store):
    """`tensors/<sha256>.npy`, `jobs/<id>/` and `uploads/` below one folder, private to the server's account.

    `tensors/<sha256>.json` is the summary of a tensor, if anybody has asked for it; `tensors/<sha256>.verified` says
    when a large one was read and found intact, and what it holds.
    """

    def __init__(self, root: Path, create: bool = True, deferred: bool = False) -> None:
        self.root = root.absolute()
        self._deferred = deferred
        self._tensors, self._jobs, self._uploads = (self.root / kind for kind in KINDS)
        self._lock = self._tensors / ".lock"
        if create:
            for folder in (self.root, self._tensors, self._jobs, self._uploads):
                private_folder(folder)

    # Tensors

    def upload(self) -> LocalUpload:
        path = self._uploads / secrets.token_hex(8)
        return LocalUpload(path, self._tensors, self._lock, self.remove_tensor, self.remember_tensor)

    def open_tensor(self, sha256: str) -> NDArray[Any]:
        """A read-only memory map."""
        path = self.tensor_path(sha256)
        with translate_storage_errors():
            if not path.is_file():
                raise NotFound("tensor content", sha256)
            return open_array(path)

    def open_content(self, sha256: str) -> OpenFile:
        try:
            file = self.tensor_path(sha256).open("rb")
        except FileNotFoundError as error:
            raise NotFound("tensor content", sha256) from error
        nbytes = file.seek(0, 2)
        file.seek(0)
        return OpenFile(file, sha256, nbytes)

    def summary(self, sha256: str) -> bytes | None:
        """The file begins with the digest of the rest: a damaged one is not believed, and made anew."""
        try:
            digest, _, content = self._summary_path(sha256).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        return content if hashlib.sha256(content).hexdigest().encode() == digest else None

    def save_summary(self, sha256: str, content: bytes) -> None:
        """Under the lock: else the tensor might be removed meanwhile, and the summary left."""
        with locked(private_file(self._lock), shared=True):
            if self.tensor_path(sha256).is_file():
                digest = hashlib.sha256(content).hexdigest().encode()
                atomic_write(self._summary_path(sha256), digest + b"\n" + content)

    def verify_tensor(
        self, sha256: str, threads: int | None = None, on_progress: OnProgress = lambda share: None
    ) -> Scan | None:
        """Compare the bytes with their digest: a disk may spoil them, or a person. An unchanged file is read once."""
        path = self.tensor_path(sha256)
        with translate_storage_errors():
            if not path.is_file():
                return None
            file = FileIdentity.of(path)
            if file.nbytes < LEAST_BYTES:
                intact, found = sha256_of(path) == sha256, None
            else:
                remembered = self._verified(sha256)
                if remembered is not None and remembered.holds_for(file):
                    return remembered.known
                found = verify(path, sha256, threads, on_progress)
                intact = found is not None
        if not intact:
            raise CorruptFile(f"the stored tensor {sha256} was altered since it was uploaded")
        if found is None:
            return None
        self.remember_tensor(sha256, found)
        return found.scan

    def _verified(self, sha256: str) -> Verified | None:
        try:
            return Verified.from_bytes(self._verified_path(sha256).read_bytes(), sha256)
        except FileNotFoundError:
            return None

    def remember_tensor(self, sha256: str, found: Verified) -> None:
        """Under the lock, as a summary; not flushed: what a power cut spoils is not believed, and found again.

        Without room on the disk, too, the next attempt reads the file again.
        """
        if found.file.nbytes < LEAST_BYTES or not found.file.is_telling:
            return
        try:
            with locked(private_file(self._lock), shared=True):
                if self.tensor_path(sha256).is_file():
                    atomic_write(self._verified_path(sha256), found.to_bytes(sha256), flush=False)
        except (StoreFull, StoreUnavailable) as error:
            log.warning("tensor %s: that it is intact was not remembered: %s", sha256, error)

    def remove_tensor(self, sha256: str, is_unused: IsUnused) -> bool:
        """Under the lock: an upload of the same bytes, which may be adding its record just now, holds it until then."""
        with locked(private_file(self._lock)):
            if not is_unused(sha256):
                return False
            self._summary_path(sha256).unlink(missing_ok=True)
            self._verified_path(sha256).unlink(missing_ok=True)
            self.tensor_path(sha256).unlink(missing_ok=True)
            return True

    def tensor_path(self, sha256: str) -> Path:
        return self._tensors / f"{_plain('tensor content', sha256)}.npy"

    def _summary_path(self, sha256: str) -> Path:
        return self.tensor_path(sha256).with_suffix(".json")

    def _verified_path(self, sha256: str) -> Path:
        return self.tensor_path(sha256).with_suffix(".verified")

    # Jobs

    def job(self, job_id: str) -> JobFolder:
        return JobFolder(self.job_path(job_id), job_id, self._deferred)

    def deferred(self) -> "LocalStore":
        return LocalStore(self.root, create=False, deferred=True)

    def flush(self) -> None:
        flush_all(self.root)

    def remove_job(self, job_id: str) -> None:
        """Remove the folder. Whoever settles the job just now finds its record gone, and removes the rest."""
        try:
            remove(self.job_path(job_id))
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    def job_path(self, job_id: str) -> Path:
        return self._jobs / _plain("job", job_id)

    # What is there

    def find(self, kind: Literal["job", "content"], id: str) -> StoredItem | None:
        path = self.job_path(id) if kind == "job" else self.tensor_path(id)
        return self._item(path) if path.exists() else None

    def abandoned_uploads(self) -> list[StoredItem]:
        """Those that are not locked: a living writer holds a lock."""
        paths = [path for path in list(self._uploads.iterdir()) if _is_older(path, UNLOCKED_SECONDS)]
        return [self._item(path, kept_digest(path)) for path in paths if _is_unlocked(path)]

    def interrupted_writes(self) -> list[StoredItem]:
        """Not what was collected of a history: one piece may come long after the other."""
        hidden = [*self._jobs.glob(".*"), *self._jobs.glob("[!.]*/.*"), *self._tensors.glob(".*.*.*")]
        found = [path for path in hidden if path.name not in COLLECTED]
        return [self._item(path) for path in found if _is_older(path, WRITING_SECONDS)]

    def superseded(self) -> list[tuple[str, StoredItem]]:
        ids = [path.name for path in self._jobs.glob("[!.]*")]
        return [(id, self._item(path)) for id in ids for path in self.job(id).superseded()]

    def remove_leftover(self, item: StoredItem) -> None:
        remove(self.root / item.name)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.root).free

    def total_bytes(self) -> int:
        return shutil.disk_usage(self.root).total

    def check_writable(self) -> None:
        """StoreFull or StoreUnavailable if a file cannot be written. Tried, not guessed."""
        with translate_storage_errors(), tempfile.TemporaryFile(dir=self.root) as file:
            file.write(b"ready")

    def stored_bytes(self) -> dict[str, int]:
        """Bytes by kind; takes about a second for a hundred thousand files."""
        return {kind: size_of(self.root / kind) for kind in KINDS}

    def _item(self, path: Path, sha256: str | None = None) -> StoredItem:
        return StoredItem(str(path.relative_to(self.root)), size_of(path), sha256)


def open_store(configuration: Configuration) -> Store:
    """The store of a server, made if it is missing."""
    return LocalStore(configuration.data)


def _plain(kind: str, name: str) -> str:
    """The name, if it is no path. Names come from records, never from callers; this is a second line of defence."""
    if not PLAIN.fullmatch(name):
        raise NotFound(kind, name)
    return name


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime > seconds
    except FileNotFoundError:
        return False


def _is_unlocked(path: Path) -> bool:
    try:
        with locked(path, wait=False):
            return True
    except (BlockingIOError, FileNotFoundError):
        return False
