"""The tensors of a store: uploads, contents by their SHA-256, and notes about them.

Equal bytes are stored once: `worker/store/copies.py` says how, whatever uploads and removals go on at the same time.
"""

import hashlib
import logging
import math
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from numpy.typing import NDArray

from sparse_ncp.solvers.runtime import OnProgress, Scan
from sparse_ncp.worker.errors import BadTensor, CorruptFile, NotFound, StoreFull, StoreUnavailable
from sparse_ncp.worker.store.blobs import Blob, Blobs, OpenFile, StoredItem
from sparse_ncp.worker.store.copies import DIGEST, NOTES, PIN, Copies, IsUnused, read_small
from sparse_ncp.worker.store.npy_validation import Facts, inspect, load_array, open_array
from sparse_ncp.worker.store.verification import LEAST_BYTES, Verified, verify

Answer = TypeVar("Answer")
SUMMARY, ZEROS, VERIFIED = NOTES
# A smaller chunk is hashed sooner than a thread is woken.
LARGE_CHUNK = 1 << 18
# How often to look again for a blob that is replaced or deleted meanwhile.
TRIES = 20
# How often to list the copies of a tensor that seems to be gone: a listing may miss one that replaces another.
LOOKS = 3
log = logging.getLogger("ncp.store")


class Content(NamedTuple):
    """Where the bytes of a tensor lie."""

    blob: str
    nbytes: int


class Tensors:
    """The tensors in a store."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.copies = Copies(blobs)

    def upload(self) -> "Upload":
        """Receive a tensor."""
        return Upload(self, self._blobs)

    def open_array(self, sha256: str) -> NDArray[Any]:
        """Return the tensor as a read-only array: a memory map where the store has a local path."""
        return self._open(sha256, lambda content: _array(self._blobs, content.blob))

    def open_content(self, sha256: str) -> OpenFile:
        """Open the `.npy` file as it was uploaded."""
        return self._open(sha256, lambda content: OpenFile(self._blobs.open(content.blob), sha256, content.nbytes))

    def _open(self, sha256: str, read: Callable[[Content], Answer]) -> Answer:
        """Read content that another upload may be replacing."""
        for _ in range(TRIES):
            content = self.find(sha256)
            if content is None:
                break
            with suppress(FileNotFoundError):
                return read(content)
        raise NotFound("tensor content", sha256)

    def find(self, sha256: str) -> Content | None:
        """Find the bytes with this SHA-256; None if there are none.

        Raises
        ------
        NotFound
            The argument is not a SHA-256.
        """
        if not DIGEST.fullmatch(sha256):
            raise NotFound("tensor content", sha256)
        for _ in range(LOOKS):
            for copy in self.copies.find_all(sha256):
                if copy.manifests and copy.found_nbytes is not None:
                    return Content(copy.blob, copy.nbytes)
        with suppress(FileNotFoundError):  # stored before there were manifests
            return Content(*self._blobs.stat(f"tensors/{sha256}.npy")[:2])
        return None

    def item(self, sha256: str) -> StoredItem | None:
        """Describe a tensor, with all that belongs to it; None if there is none."""
        content = self.find(sha256)
        if content is None:
            return None
        beside = sum(blob.nbytes for blob in self._blobs.list(f"tensors/{sha256}/"))
        return StoredItem(f"tensors/{sha256}", content.nbytes + beside)

    # What is remembered

    def summary(self, sha256: str) -> bytes | None:
        """Return the summary of a tensor; None if there is none, or if it is damaged."""
        return self._computed(sha256, SUMMARY)

    def save_summary(self, sha256: str, content: bytes) -> None:
        """Save a summary, which is kept as long as its tensor."""
        self._save_computed(sha256, SUMMARY, content)

    def zeros(self, sha256: str) -> bytes | None:
        """Return the report on the zeros of a tensor; None if there is none, or if it is damaged."""
        return self._computed(sha256, ZEROS)

    def save_zeros(self, sha256: str, content: bytes) -> None:
        """Save a report on zeros, which is kept as long as its tensor."""
        self._save_computed(sha256, ZEROS, content)

    def _computed(self, sha256: str, name: str) -> bytes | None:
        digest, _, content = (read_small(self._blobs, f"tensors/{sha256}/{name}") or b"").partition(b"\n")
        return content if hashlib.sha256(content).hexdigest().encode() == digest else None

    def _save_computed(self, sha256: str, name: str, content: bytes) -> None:
        """Store a note beside a tensor, after its digest."""
        self._remember(sha256, name, hashlib.sha256(content).hexdigest().encode() + b"\n" + content, flush=True)

    def _remember(self, sha256: str, name: str, content: bytes, flush: bool) -> None:
        """Put a note beside a tensor, unless the tensor is gone by then."""
        if self.find(sha256) is not None:
            self._blobs.put(f"tensors/{sha256}/{name}", content, flush=flush)
            if self.find(sha256) is None:
                self._blobs.delete(f"tensors/{sha256}/{name}")

    def verify(
        self,
        sha256: str,
        threads: int | None = None,
        on_progress: OnProgress | None = None,
        valid_seconds: float = math.inf,
    ) -> Scan | None:
        """Compare the bytes with their digest, since they may have been damaged. Unchanged bytes are read once.

        Parameters
        ----------
        sha256 : str
            The tensor.
        threads : int, optional
            How many threads scan the tensor.
        on_progress : callable, optional
            Called with the fraction of the bytes that has been read.
        valid_seconds : float, optional
            After this time even unchanged bytes are read again.

        Returns
        -------
        Scan or None
            The result of a scan, if one was made. None for a deleted tensor, which raises an error when it is opened.

        Raises
        ------
        CorruptFile
            The bytes are no longer those that were uploaded.
        """
        try:
            return self._open(
                sha256, lambda content: self._verify(sha256, content.blob, threads, on_progress, valid_seconds)
            )
        except NotFound:
            return None

    def _verify(
        self, sha256: str, name: str, threads: int | None, on_progress: OnProgress | None, valid_seconds: float
    ) -> Scan | None:
        blob, found = self._blobs.stat(name), None
        if blob.nbytes < LEAST_BYTES:
            with self._blobs.open(blob.name) as file:
                intact = hashlib.file_digest(file, "sha256").hexdigest() == sha256  # type: ignore[arg-type]
        else:
            note = read_small(self._blobs, f"tensors/{sha256}/{VERIFIED}")
            remembered = None if note is None else Verified.from_bytes(note, sha256)
            if remembered is not None and remembered.holds_for(blob, valid_seconds):
                return remembered.known
            found = self._scan(blob.name, sha256, threads, on_progress)
            intact = found is not None
        if not intact:
            raise CorruptFile(f"the stored tensor {sha256} was altered since it was uploaded")
        if found is not None:
            self.remember(sha256, blob, found)
        return found

    def _scan(self, blob: str, sha256: str, threads: int | None, on_progress: OnProgress | None) -> Scan | None:
        try:
            tensor = _array(self._blobs, blob)
        except BadTensor:
            return None
        with self._blobs.open(blob) as file:
            return verify(file, tensor, sha256, threads, on_progress)

    def remember(self, sha256: str, blob: Blob, found: Scan) -> None:
        """Note that a large tensor is intact. The note is not flushed: if it is lost, the tensor is checked again."""
        note = Verified.now(blob, found) if blob.nbytes >= LEAST_BYTES else None
        if note is None:
            return
        try:
            self._remember(sha256, VERIFIED, note.to_bytes(sha256), flush=False)
        except (StoreFull, StoreUnavailable) as error:
            log.warning("tensor %s: its check was not noted, it will be repeated: %s", sha256, error)


class Upload:
    """An upload, as a context manager. Bytes that were not kept are discarded at its end.

    The tensor's record must be added before it ends: until then no other process may remove the same content.
    """

    def __init__(self, tensors: Tensors, blobs: Blobs) -> None:
        self._tensors = tensors
        self._blobs = blobs
        self._token = secrets.token_hex(8)
        self._blob = f"tensors/{self._token}.npy"
        self._pin: str | None = None
        self._kept = False
        self._published = False  # whether its own bytes are a copy of the tensor
        self._digest = hashlib.sha256()
        self._open = ExitStack()

    def __enter__(self) -> "Upload":
        self._writer = self._open.enter_context(self._blobs.writer(self._blob))
        self._hasher = self._open.enter_context(ThreadPoolExecutor(1, "hash"))
        return self

    @property
    def nbytes(self) -> int:
        """Number of bytes written."""
        return self._writer.nbytes

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes written."""
        return self._digest.hexdigest()

    def write(self, chunk: bytes | memoryview) -> None:
        """Write and hash a piece. The caller may reuse its buffer afterwards."""
        hashed = self._hasher.submit(self._digest.update, chunk) if len(chunk) >= LARGE_CHUNK else None
        try:
            self._writer.write(chunk)
        finally:
            if hashed is None:
                self._digest.update(chunk)
            else:
                hashed.result()

    def keep(self, expected_sha256: str | None = None, threads: int | None = None) -> tuple[str, Facts]:
        """Check the file and store it under its SHA-256, so that equal bytes are stored once.

        Parameters
        ----------
        expected_sha256 : str, optional
            The digest that the sender gave.
        threads : int, optional
            How many threads scan the tensor.

        Returns
        -------
        sha256 : str
            The digest.
        facts : Facts
            Properties of the tensor.

        Raises
        ------
        BadTensor
            It cannot be decomposed, or has another digest.
        """
        sha256 = self.sha256
        if expected_sha256 is not None and expected_sha256.lower() != sha256:
            raise BadTensor("Repr-Digest", f"does not match: the body's SHA-256 is {sha256}", "upload it again")
        path = self._writer.local_path()
        with ExitStack() as stack:
            if path is None:
                self._writer.commit()
                tensor = _array(self._blobs, self._blob)
            else:
                tensor = open_array(path)  # what is not a tensor at all is refused before anything is flushed
            threaded = stack.enter_context(ThreadPoolExecutor(2))
            self._pin = f"tensors/{sha256}/{PIN}{self._token}"
            steps = [threaded.submit(self._blobs.put, self._pin, b"")]
            if path is not None:
                steps.append(threaded.submit(self._writer.commit))  # flushed while the entries are read
            facts, found = inspect(tensor, threads)
            for step in steps:
                step.result()
        self._published = self._tensors.copies.publish(sha256, self._token, self._writer.nbytes)
        self._kept = True
        merged = self._tensors.copies.merge(sha256)
        if merged is None and self._tensors.find(sha256) is None:
            raise StoreUnavailable("the upload took so long that its bytes were removed meanwhile")
        if merged is not None and merged.blob == self._blob:
            with suppress(FileNotFoundError):  # an equal upload has published its bytes meanwhile
                self._tensors.remember(sha256, self._blobs.stat(self._blob), found)
        return sha256, facts

    def discard(self, is_unused: IsUnused) -> None:
        """Remove an upload that was kept, but whose record was refused."""
        removed = self._tensors.copies.remove(self.sha256, is_unused, self._pin)
        if self._pin is not None and (removed or not is_unused(self.sha256)):
            self._blobs.delete(self._pin)  # else an equal upload relies on the bytes, and may fail as well

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open:
            if self._kept and kind is None and not self._published:
                # No cost if its copy is usable still. If a removal has marked that, its own bytes take the place.
                self._published = self._tensors.copies.publish(self.sha256, self._token, self._writer.nbytes)
                self._tensors.copies.merge(self.sha256)
            if not self._published:
                self._writer.abort()
                self._blobs.delete(self._blob)
            if self._pin is not None and (kind is None or not self._kept):
                self._blobs.delete(self._pin)  # else cleanup finds out whether the bytes are needed


def _array(blobs: Blobs, name: str) -> NDArray[Any]:
    """Open a `.npy` blob as a read-only array."""
    path = blobs.local_path(name)
    if path is not None:
        return open_array(path)
    with blobs.open(name) as file:
        return load_array(file)
