"""Operations on tensors that need both their records and their bytes."""

import hashlib
import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from anyio import CancelScope, to_thread

from sparse_ncp.solvers import InvalidInput
from sparse_ncp.worker.contract import ZERO_REPORTS, Axes, TensorRecord
from sparse_ncp.worker.errors import InvalidJob, QuotaReached, StoreUnavailable
from sparse_ncp.worker.operations.receiving import ByteSource, write_upload
from sparse_ncp.worker.operations.reservations import Reservation
from sparse_ncp.worker.operations.samples import find_sample, sample_content
from sparse_ncp.worker.operations.slices import Slice, SliceSpec
from sparse_ncp.worker.operations.summaries import summarize
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.blobs import OpenFile
from sparse_ncp.worker.store.store import Store
from sparse_ncp.worker.store.tensors import Upload

# Entries of a slice of a tensor alone: 512 × 512, for a heat map.
MAX_SLICE_ENTRIES = 1 << 18


class TensorOperations:
    """Receive, label, slice and delete tensors."""

    def __init__(self, records: Records, store: Store, min_free_bytes: int = 0) -> None:
        self._all_records = records
        self._records = records.tensors
        self._min_free_bytes = min_free_bytes
        self._store = store
        self._adding_sample = threading.Lock()

    async def receive(
        self,
        source: ByteSource,
        owner: str,
        name: Callable[[], str | None],
        length: int = 0,
        expected_sha256: str | None = None,
        limits: Limits = UNLIMITED,
    ) -> TensorRecord:
        """Receive a `.npy` file, check it, and keep it as a tensor of its owner.

        Parameters
        ----------
        source : ByteSource
            The bytes of the file.
        owner : str
            Whose quota the tensor counts for.
        name : callable
            Called once the file is complete, since a form may give its name late; its result is the tensor's name.
        length : int
            Size that the sender has announced, reserved in advance; 0 if unknown.
        expected_sha256 : str, optional
            Digest that the sender has announced.
        limits : Limits
            Limits of the owner.

        Raises
        ------
        BadTensor
            If the file is not a tensor that can be decomposed.
        QuotaReached
            If the owner may not store that much.
        StoreFull
            If the disk has no room left for it.
        """
        reservation = Reservation(self._all_records, self._store, owner, limits, self._min_free_bytes)
        try:
            await to_thread.run_sync(reservation.reserve, length, 0)
            with self._store.upload() as upload:
                await write_upload(source, upload, reservation)
                keep = partial(self.keep, upload, owner, name(), expected_sha256, limits, reservation)
                return await to_thread.run_sync(keep)
        except BaseException:
            with CancelScope(shield=True):
                await to_thread.run_sync(reservation.release)
            raise

    def keep(
        self,
        upload: Upload,
        owner: str,
        name: str | None = None,
        expected_sha256: str | None = None,
        limits: Limits = UNLIMITED,
        reservation: Reservation | None = None,
    ) -> TensorRecord:
        """Check an uploaded file, keep it, and add its record, which replaces the reservation.

        Nothing is kept if it cannot be decomposed (BadTensor) or exceeds the quota of its owner (QuotaReached).
        """
        sha256, facts = upload.keep(expected_sha256)
        record = TensorRecord(
            id=secrets.token_hex(8),
            owner=owner,
            name=name and name[:200],
            shape=facts.shape,
            dtype=facts.dtype,
            nbytes=upload.nbytes,
            sha256=sha256,
            min=facts.min,
            max=facts.max,
            norm=facts.norm,
            missing=facts.missing,
            negative=facts.negative,
            created_at=datetime.now(UTC),
        )
        try:
            self._records.add(record, limits, reservation.id if reservation else "")
        except QuotaReached:
            upload.discard(self._records.is_content_unused)
            raise
        return record

    def get(self, owner: str, id: str) -> TensorRecord:
        """Return a tensor with the labels of its modes, and what is known of its zeros."""
        record = self._records.get_labelled(owner, id)
        try:
            report = self._store.zeros(record.sha256)
        except StoreUnavailable:  # the record itself is in Redis
            report = None
        return record if report is None else record.model_copy(update={"zeros": ZERO_REPORTS.validate_json(report)})

    def open_content(self, owner: str, id: str) -> OpenFile:
        """Open the `.npy` file of a tensor."""
        return self._store.open_content(self._records.get(owner, id).sha256)

    def add_sample(self, owner: str, name: str, limits: Limits = UNLIMITED) -> tuple[TensorRecord, bool]:
        """Add a sample to the owner's tensors, with labels; (record, False) if the owner has the same bytes already."""
        sample, content = find_sample(name), sample_content(name)
        with self._adding_sample:  # two clicks make one tensor
            found = self._records.list(owner, sha256=hashlib.sha256(content).hexdigest(), limit=1).items
            if found:
                return self._records.get_labelled(owner, found[0].id), False
            reservation = Reservation(self._all_records, self._store, owner, limits, self._min_free_bytes)
            try:
                reservation.reserve(len(content), 0)
                with self._store.upload() as upload:
                    upload.write(content)
                    record = self.keep(upload, owner, sample.title, limits=limits, reservation=reservation)
            except BaseException:
                reservation.release()
                raise
            try:
                self._records.set_axes(owner, record.id, sample.axes, limits)
            except QuotaReached:
                self.delete(owner, record.id)
                raise
        return record.model_copy(update={"axes": sample.axes}), True

    def slice(self, owner: str, id: str, fix: str, max_length: int) -> Slice:
        """Return the slice at the fixed indices `fix`, such as 1:3,4:0, with at most `max_length` indices per mode."""
        tensor = self._store.open_tensor(self._records.get(owner, id).sha256)
        spec = SliceSpec.parse(fix, tensor.shape, max_length, MAX_SLICE_ENTRIES)
        return spec.slice(spec.entries(tensor))

    def summarize(self, owner: str, id: str) -> bytes:
        """Return the summary of a tensor as JSON. It is computed once, which reads all entries."""
        record = self._records.get(owner, id)
        found = self._store.summary(record.sha256)
        if found is None:
            summary = summarize(self._store.open_tensor(record.sha256), record.min, record.max)
            found = summary.model_dump_json().encode()
            self._store.save_summary(record.sha256, found)
        return found

    def set_axes(self, owner: str, id: str, axes: Axes, limits: Limits = UNLIMITED) -> None:
        """Label the modes of a tensor; raise InvalidJob with all labels that do not fit."""
        shape, problems = self._records.get(owner, id).shape, []
        if len(axes) != len(shape):
            problem = f"the tensor has {len(shape)} modes, not {len(axes)}"
            problems.append(InvalidInput("axes", problem, "give one entry for each mode, in their order"))
        for mode, (axis, length) in enumerate(zip(axes, shape, strict=False), start=1):
            if len(axis.values) != length:
                problem = f"mode {mode} of the tensor has a length of {length}, not {len(axis.values)}"
                problems.append(InvalidInput(f"axes[{mode}].values", problem, "give one for each index of the mode"))
        names = [axis.name for axis in axes]
        for mode, name in enumerate(names, start=1):
            first = names.index(name) + 1
            if first < mode:
                problem = f"{name!r} is already the name of mode {first}"
                problems.append(InvalidInput(f"axes[{mode}].name", problem, "give every mode a name of its own"))
        if problems:
            raise InvalidJob(problems)
        self._records.set_axes(owner, id, axes, limits)

    def delete(self, owner: str, id: str, unused_since: int | None = None) -> None:
        """Delete a tensor, and its bytes if no other record has the same.

        With `unused_since` (milliseconds, by the clock of Redis), raise InUse if it was used after that.
        """
        sha256 = self._records.delete(owner, id, unused_since)
        self._store.rendered.discard(id)
        if sha256 is not None:
            self.remove_content(sha256)

    def remove_content(self, sha256: str) -> bool:
        """Remove stored bytes unless a record refers to them; return whether they were removed."""
        return self._store.remove_tensor(sha256, self._records.is_content_unused)

    def remove_abandoned_uploads(self) -> int:
        """Remove uploads that were interrupted and bytes that have no record; return how many there were."""
        abandoned = self._store.abandoned_uploads()
        for item in abandoned:
            sha256 = item.sha256
            if sha256 is None or self.remove_content(sha256) or not self._records.is_content_unused(sha256):
                self._store.remove_leftover(item)  # else a live upload of the same bytes may still fail: look again
        return len(abandoned)
