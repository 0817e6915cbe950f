"""The copies of a tensor's bytes: how one is published, several are merged, and all are removed, without a lock.

The bytes of an upload lie under a random name, `tensors/<token>.npy`. The manifest
`tensors/<sha256>/manifest-<token>.json` makes them a copy of that tensor. No token is used twice, so that a copy has
each of these states once, in this order:

usable
    Another upload of the same bytes relies on it, and discards its own.
marked
    By `removal-<token>`, for good. It is still read, but no other upload begins to rely on it.
gone
    Its bytes are deleted first, then the manifest, then the mark: without a mark there is no half of a copy.

A *pin*, `tensors/<sha256>/pin-<token>`, is put before an upload looks for copies and deleted once its record is added.
A marked copy is deleted only if one of two things was seen after its mark was there: no pin and no record, in this
order, or a usable copy. An upload that relies on a copy has found it unmarked, and so its pin is older than the mark:
the first is not seen before the record is gone, and with the second it relies on that other copy, which is as safe.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from sparse_ncp.worker.store.blobs import Blob, Blobs, StoredItem

# Whether no record names the bytes with this SHA-256.
IsUnused: TypeAlias = Callable[[str], bool]

FORMAT = 1
# The second and third name are of folders that were written before each copy had a manifest of its own.
MANIFEST = re.compile(r"manifest-([0-9a-f]{16})\.json|manifest\.json|removal\.json")
MARK, PIN, NOTES = "removal-", "pin-", ("summary.json", "zeros.json", "verified.json")
TOKEN, DIGEST = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{64}")
# A pin, or bytes without a manifest, of this age belongs to an upload whose process died.
ABANDONED_SECONDS = 3600.0


class Copy(NamedTuple):
    """One copy of the bytes of a tensor, as it was found."""

    blob: str
    nbytes: int
    manifests: tuple[str, ...]
    mark: str
    is_marked: bool
    found_nbytes: int | None  # None if the bytes are gone

    @property
    def is_usable(self) -> bool:
        """Whether an upload may rely on it."""
        return not self.is_marked and self.found_nbytes == self.nbytes


class Copies:
    """The copies of all tensors in a store."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def find_all(self, sha256: str) -> list[Copy]:
        """List the copies of a tensor, and what is left of removed ones; usable ones first.

        The bytes are looked for after the marks: bytes that are found had no mark when this began, or it is known.
        """
        folder = f"tensors/{sha256}/"
        manifests: dict[str, list[str]] = {}
        lengths: dict[str, int] = {}
        marked: set[str] = set()
        for blob in self._blobs.list(folder):
            name = blob.name.removeprefix(folder)
            if name.startswith(MARK) and TOKEN.fullmatch(name.removeprefix(MARK)):
                marked.add(f"tensors/{name.removeprefix(MARK)}.npy")
            elif MANIFEST.fullmatch(name) and (content := read_small(self._blobs, blob.name)) is not None:
                manifest = json.loads(content)
                manifests.setdefault(manifest["blob"], []).append(blob.name)
                lengths[manifest["blob"]] = manifest["nbytes"]
        copies = []
        for name in manifests.keys() | marked:
            token, found = name.removeprefix("tensors/").removesuffix(".npy"), None
            with suppress(FileNotFoundError):
                found = self._blobs.stat(name).nbytes
            names = manifests.get(name, [])
            copies.append(Copy(name, lengths.get(name, 0), (*names,), f"{folder}{MARK}{token}", name in marked, found))
        return sorted(copies, key=lambda copy: (not copy.is_usable, copy.blob))

    def publish(self, sha256: str, token: str, nbytes: int) -> bool:
        """Make the bytes of an upload a copy unless there is a usable one; return whether this was done.

        The upload must have put its pin.
        """
        if any(copy.is_usable for copy in self.find_all(sha256)):
            return False
        manifest = {"format": FORMAT, "sha256": sha256, "blob": f"tensors/{token}.npy", "nbytes": nbytes}
        self._blobs.put(f"tensors/{sha256}/manifest-{token}.json", json.dumps(manifest).encode())
        return True

    def merge(self, sha256: str) -> Copy | None:
        """Delete all copies but a usable one, as when two uploads of the same bytes have published theirs at once.

        Returns
        -------
        Copy or None
            The copy that stays. None if a removal has marked all, or there is none: nothing is deleted then.
        """
        copies = self.find_all(sha256)
        if not copies or not copies[0].is_usable:
            return None
        kept, *others = copies
        self._mark(others)
        if not others or any(copy.is_usable and copy.blob == kept.blob for copy in self.find_all(sha256)):
            self._delete(others)
            self._delete_unversioned(sha256)
        return kept

    def remove(self, sha256: str, is_unused: IsUnused, own_pin: str | None = None) -> bool:
        """Remove a tensor unless a record names it or an upload of the same bytes is adding one.

        Parameters
        ----------
        sha256 : str
            The tensor.
        is_unused : callable
            Asked again while no other upload begins to rely on these copies.
        own_pin : str, optional
            The pin of an upload that does not need the bytes any more.

        Returns
        -------
        bool
            Whether it was removed.
        """
        if not self._is_free(sha256, is_unused, own_pin):
            return False
        copies = self.find_all(sha256)
        self._mark(copies)
        if not self._is_free(sha256, is_unused, own_pin):
            return False
        self._delete(copies)
        self._delete_unversioned(sha256)
        if not self.find_all(sha256):
            for name in NOTES:
                self._blobs.delete(f"tensors/{sha256}/{name}")
        return True

    def _is_free(self, sha256: str, is_unused: IsUnused, own_pin: str | None) -> bool:
        """Return whether no upload and no record relies on the bytes. Pins first: they end once the record is added."""
        blobs = self._blobs.list(f"tensors/{sha256}/")
        pins = [blob for blob in blobs if _is_pin(blob.name) and blob.name != own_pin]
        return all(pin.age_seconds > ABANDONED_SECONDS for pin in pins) and is_unused(sha256)

    def _mark(self, copies: list[Copy]) -> None:
        for copy in copies:
            if not copy.is_marked:
                self._blobs.put(copy.mark, b"")

    def _delete(self, copies: list[Copy]) -> None:
        for copy in copies:
            for name in (copy.blob, *copy.manifests, copy.mark):
                self._blobs.delete(name)

    def _delete_unversioned(self, sha256: str) -> None:
        """Delete what was stored before there were manifests. No upload relies on it."""
        for suffix in ("npy", "json", "verified"):
            self._blobs.delete(f"tensors/{sha256}.{suffix}")

    def abandoned(self) -> Iterator[StoredItem]:
        """List pins of uploads that died, with the digest of their tensor, and bytes that no manifest names.

        A mark is not listed: it does not say that the tensor is unused.
        """
        old: list[Blob] = []
        named: set[str] = set()
        unversioned: list[str] = []
        for blob in self._blobs.list("tensors/"):
            folder, _, name = blob.name.removeprefix("tensors/").rpartition("/")
            is_old = blob.age_seconds > ABANDONED_SECONDS
            if not folder and TOKEN.fullmatch(name.removesuffix(".npy")) and is_old:
                old.append(blob)
            elif DIGEST.fullmatch(folder) and (manifest := MANIFEST.fullmatch(name)):
                if manifest[1] is None:
                    unversioned.append(blob.name)
                else:
                    named.add(f"tensors/{manifest[1]}.npy")
            elif DIGEST.fullmatch(folder) and _is_pin(name) and is_old:
                yield StoredItem(blob.name, blob.nbytes, folder)
        if not named.issuperset(blob.name for blob in old):
            contents = (read_small(self._blobs, name) for name in unversioned)
            named.update(json.loads(content)["blob"] for content in contents if content is not None)
            yield from (StoredItem(blob.name, blob.nbytes) for blob in old if blob.name not in named)


def read_small(blobs: Blobs, name: str) -> bytes | None:
    """Return a small blob; None if there is none."""
    try:
        with blobs.open(name) as file:
            return file.read()
    except FileNotFoundError:
        return None


def _is_pin(name: str) -> bool:
    return name.rpartition("/")[2].startswith(PIN)
