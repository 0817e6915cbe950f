"""Paths and files. Nothing else knows where anything lies."""

import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from worker.errors import Damaged, NotFound
from worker.files import folder_bytes, private_folder, remove, sha256_of
from worker.npy import open_array
from worker.results import JobFolder
from worker.uploads import Upload, kept_digest

SETTLED_SECONDS = 60.0
PLAIN = re.compile(r"[A-Za-z0-9-]{1,64}")
# No living attempt leaves a file that it is writing untouched for so long.
WRITING_SECONDS = 3600.0


class Store:
    """The arrays of one server: tensors under their SHA-256, one folder per job."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        private_folder(self.root)
        self._tensors = private_folder(self.root / "tensors")
        self._uploads = private_folder(self.root / "uploads")
        self._jobs = private_folder(self.root / "jobs")
        self._lock = self._tensors / ".lock"

    def upload(self) -> Upload:
        return Upload(self._uploads / secrets.token_hex(8), self._tensors, self._lock)

    def tensor_path(self, sha256: str) -> Path:
        return self._tensors / f"{_plain('tensor content', sha256)}.npy"

    def open_tensor(self, sha256: str) -> NDArray[Any]:
        """A read-only memory map."""
        path = self.tensor_path(sha256)
        if not path.is_file():
            raise NotFound("tensor content", sha256)
        return open_array(path)

    def check_tensor(self, sha256: str) -> None:
        """Damaged if the bytes are no longer those that were uploaded: a disk may spoil them, or a person."""
        path = self.tensor_path(sha256)
        if path.is_file() and sha256_of(path) != sha256:
            raise Damaged(f"the stored tensor {sha256} was altered since it was uploaded")

    def remove_tensor(self, sha256: str, unused: Callable[[str], bool]) -> bool:
        """Remove the bytes unless a record names them again: `unused` is asked while no upload can be kept.

        Pass `Records.content_unused`. An upload of the same bytes may be adding its record just now.
        """
        with _open_lock(self._lock) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not unused(sha256):
                return False
            self.tensor_path(sha256).unlink(missing_ok=True)
            return True

    def discard(self, upload: Upload, unused: Callable[[str], bool]) -> None:
        """Of an upload that was kept, but whose record was refused: leave nothing of it."""
        upload.unlock()
        self.remove_tensor(upload.sha256, unused)
        upload.drop_note()

    def abandoned_uploads(self) -> list[Path]:
        return [path for path in list(self._uploads.iterdir()) if _is_old(path) and _is_abandoned(path)]

    def remove_abandoned_uploads(self, unused: Callable[[str], bool]) -> int:
        """Uploads whose writer is gone: a living one holds a lock. Bytes that were kept without a record go too."""
        abandoned = self.abandoned_uploads()
        for path in abandoned:
            sha256 = kept_digest(path)
            if sha256 is not None:
                self.remove_tensor(sha256, unused)
            path.unlink(missing_ok=True)
        return len(abandoned)

    def job(self, job_id: str) -> JobFolder:
        """Checkpoints, factors and history of a job."""
        return JobFolder(self._jobs / _plain("job", job_id), job_id)

    def remove_job(self, job_id: str) -> None:
        """Of a job whose record is gone. Whoever is moving its history finds that out, and removes the rest."""
        try:
            remove(self._jobs / _plain("job", job_id))
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    def left_behind(self) -> list[Path]:
        """What somebody who was killed was writing or removing, in the folders of jobs and beside them."""
        found = [*self._jobs.glob(".*"), *self._jobs.glob("[!.]*/.*")]
        return [path for path in found if _is_old(path, WRITING_SECONDS)]

    def nbytes_of(self, path: Path) -> int:
        """Of a file, or of a folder with all that is in it."""
        if path.is_dir():
            return folder_bytes(path)
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0  # somebody else has just removed it

    def job_path(self, job_id: str) -> Path:
        return self._jobs / _plain("job", job_id)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.root).free


def _plain(kind: str, name: str) -> str:
    """Names come from records, never from callers; should one ever slip through, it still leads nowhere."""
    if not PLAIN.fullmatch(name):
        raise NotFound(kind, name)
    return name


def _open_lock(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb")


def _is_old(path: Path, seconds: float = SETTLED_SECONDS) -> bool:
    """A file that was made just now may not be locked yet."""
    try:
        return time.time() - path.stat().st_mtime > seconds
    except FileNotFoundError:
        return False


def _is_abandoned(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except (BlockingIOError, FileNotFoundError):
        return False
