"""The storage protocol: named blobs that are whole or absent. Everything above it is written once, for every store."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Protocol, Self


class Blob(NamedTuple):
    """A stored blob, as `stat` and `list` describe it.

    Attributes
    ----------
    name : str
        The full name, with its prefix.
    nbytes : int
        The length of the content.
    age_seconds : float
        The time since the blob was written, by the clock of the store.
    version : str or None
        Changes whenever the content is replaced or altered. None if a change from now on could go unnoticed, as on a
        file system whose clock has coarse ticks.
    """

    name: str
    nbytes: int
    age_seconds: float
    version: str | None


class BlobWriter(Protocol):
    """One blob that is written in pieces: a context manager which aborts the write unless it was committed.

    The blob is invisible until `commit` returns. If the process dies before that, nothing becomes visible and the
    implementation reclaims the space later.
    """

    @property
    def nbytes(self) -> int:
        """The number of bytes written so far."""

    def write(self, chunk: bytes | memoryview) -> None:
        """Append a piece. The caller may reuse its buffer as soon as this returns.

        Raises
        ------
        StoreFull, StoreUnavailable
            The write can only be aborted after that.
        """

    def commit(self) -> None:
        """Make the blob durable and visible, replacing an older one of the same name."""

    def abort(self) -> None:
        """Discard what was written. Does nothing after `commit`."""

    def local_path(self) -> Path | None:
        """Return a local file with the content so far, for memory maps; None if there is none."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Blobs(Protocol):
    """Nine operations on named blobs, and an optional tenth.

    A name is one or more segments joined by ``/``. A segment consists of ASCII letters, digits, ``.``, ``_`` and ``-``,
    does not begin with ``.`` and has at most 200 characters. Any other name raises ValueError. No name may be the
    folder of another: with ``a/b`` stored, ``a`` is not a valid name for a blob.

    Every implementation keeps these promises:

    *Atomic.* A reader sees the whole old content, the whole new content or no blob, never a mixture or a part.
    *Durable.* What a method has returned from survives a crash of the process and of the machine, except after
    ``flush=False`` (see `put`) and `delete` (a deleted blob may be back after a power cut).
    *Consistent.* Every later call, in any process or machine, sees what was written or deleted.
    *Open blobs stay.* A reader keeps the content that it opened, even if the blob is replaced or deleted meanwhile.
    *Safe in threads.* All methods may be called from several threads and processes at once.

    All methods raise `StoreFull` if there is no room left, and `StoreUnavailable` if the store cannot be used for now.
    After either, a write has changed nothing.

    `tests/contracts/test_blobs.py` has the test suite that an implementation inherits.
    """

    def put(self, name: str, content: bytes, *, flush: bool = True) -> None:
        """Write a blob, replacing an older one.

        Parameters
        ----------
        name : str
            The name of the blob.
        content : bytes
            The whole content.
        flush : bool, optional
            If False, the blob is visible at once but durable only after the next `flush`. Saves most of the time
            where many small blobs are written together.
        """

    def put_if_absent(self, name: str, content: bytes, *, flush: bool = True) -> bool:
        """Write a blob unless there is one of that name.

        Returns
        -------
        bool
            True if this call wrote it. Of several concurrent calls exactly one returns True.
        """

    def open(self, name: str) -> BinaryIO:
        """Open a blob for reading; the file is seekable.

        Raises
        ------
        FileNotFoundError
            There is no such blob.
        """

    def open_range(self, name: str, start: int, nbytes: int) -> BinaryIO:
        """Open a part of a blob for reading, from front to back.

        The part ends where the blob ends, and is empty if it begins there or later.

        Raises
        ------
        FileNotFoundError
            There is no such blob.
        """

    def stat(self, name: str) -> Blob:
        """Describe a blob.

        Raises
        ------
        FileNotFoundError
            There is no such blob.
        """

    def list(self, prefix: str) -> Iterator[Blob]:
        """Describe all blobs below a prefix, in the order of their names as ASCII.

        Blobs that are written or deleted during the listing may be missing from it or not.

        Parameters
        ----------
        prefix : str
            Empty, or ends with ``/``.
        """

    def delete(self, name: str) -> None:
        """Delete a blob. Does nothing if there is none."""

    def writer(self, name: str) -> BlobWriter:
        """Write a large blob in pieces."""

    def flush(self) -> None:
        """Make everything durable that was written with ``flush=False``."""

    def local_path(self, name: str) -> Path | None:
        """Return the blob's file on a local disk, for memory maps. None where there is none.

        Raises
        ------
        FileNotFoundError
            There is no such blob, but others would have a path.
        """
        return None


class Disk(Protocol):
    """The disk of this machine which uploads and exports pass through."""

    def free_bytes(self) -> int:
        """Return how many bytes are free."""

    def total_bytes(self) -> int:
        """Return the size of the disk."""

    def scratch_file(self) -> BinaryIO:
        """Open a file without a name, which is gone once it is closed."""

    def check_writable(self) -> None:
        """Raise StoreFull or StoreUnavailable if nothing can be written at present."""

    def unfinished_bytes(self) -> int:
        """Return the size of all unfinished writes, including those of live processes."""

    def unfinished(self) -> Sequence[Blob]:
        """List unfinished writes whose processes have died. Their names are not valid for blobs."""

    def discard(self, name: str) -> None:
        """Reclaim the space of an unfinished write."""


class OpenFile(NamedTuple):
    """A stored file, open for reading. Its reader keeps the content, even if it is replaced or removed meanwhile."""

    file: BinaryIO
    sha256: str
    nbytes: int
    iteration: int | None = None  # of the factors in it


class StoredItem(NamedTuple):
    """Something in the store that cleanup may remove: its name and its size.

    `sha256` is set for a tensor that may have no record; cleanup checks that before it removes the tensor.
    """

    name: str
    nbytes: int
    sha256: str | None = None
