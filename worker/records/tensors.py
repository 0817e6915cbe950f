"""Records of tensors: owners, labels, and references to stored bytes."""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from sparse_ncp.worker.contract import Axes, Axis, Page, TensorRecord
from sparse_ncp.worker.errors import InUse, NotFound, QuotaReached, TooManyLabels, WritesRefused
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection
from sparse_ncp.worker.records.redis.lists import find_page, folded
from sparse_ncp.worker.records.redis.versions import is_readable


class TensorRecords:
    """Read and write the records of tensors."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def add(self, record: TensorRecord, limits: Limits = UNLIMITED, upload: str = "") -> None:
        """Add a record and release the reservation of its upload; raise QuotaReached if it exceeds the quota."""
        limit = limits.stored_bytes
        add = partial(
            self._redis.script,
            "tensors/add",
            record.id,
            record.owner,
            record.sha256,
            record.model_dump_json(),
            record.nbytes,
            "" if limit is None else limit,
            folded(record.name),
            upload,
        )
        (outcome, *stored), _ = self._redis.repeat_until_known(add, "tensor", record.id)
        if outcome == "full" and limit is not None:
            raise QuotaReached(limit, stored[0], record.nbytes)

    def get(self, owner: str, id: str) -> TensorRecord:
        """Return a tensor; raise NotFound if it does not exist or belongs to another owner."""
        for record in self._read_existing([id]):
            if record.owner == owner:
                return record
        raise NotFound("tensor", id)

    def find(self, ids: Iterable[str]) -> dict[str, TensorRecord]:
        """Return existing tensors of any owner by id, in one round trip."""
        return {record.id: record for record in self._read_existing(ids)}

    def get_labelled(self, owner: str, id: str) -> TensorRecord:
        """Return a tensor with the labels of its modes."""
        record = self.get(owner, id)
        return record.model_copy(update={"axes": self._axes(keys.tensor(id))})

    def set_axes(self, owner: str, id: str, axes: Axes, limits: Limits = UNLIMITED) -> None:
        """Replace the labels of a tensor; raise QuotaReached or TooManyLabels if they exceed a limit."""
        text, limit = json.dumps([axis.model_dump() for axis in axes]), limits.stored_bytes
        digest = hashlib.sha256(text.encode()).hexdigest()
        outcome, *stored = self._redis.script(
            "tensors/label", owner, id, digest, text, limit or "", limits.label_bytes or ""
        )
        if outcome == "missing":
            raise NotFound("tensor", id)
        if outcome == "full" and limit is not None:
            raise QuotaReached(limit, stored[0])
        if outcome == "crowded" and limits.label_bytes is not None:
            raise TooManyLabels(limits.label_bytes, stored[0], len(text))

    def axes_of_job(self, id: str) -> Axes | None:
        """Return the labels that the tensor had when the job was submitted."""
        return self._axes(keys.job(id)) or self._axes(keys.planned_study(id))

    def _axes(self, record: str) -> Axes | None:
        digest = self._redis.command("HGET", record, "axes")
        return None if digest is None else read_axes(self._redis.command("GET", keys.axes(digest)))

    def rename(self, owner: str, id: str, name: str | None) -> TensorRecord:
        """Rename a tensor, or remove its name. Nothing else in a record ever changes."""
        record = self.get(owner, id).model_copy(update={"name": name})
        if not self._redis.script("tensors/rename", owner, id, record.model_dump_json(), folded(name)):
            raise NotFound("tensor", id)
        return self.get_labelled(owner, id)

    def list(
        self,
        owner: str,
        sha256: str | None = None,
        name: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TensorRecord]:
        """List tensors, newest first. `name` matches any part of a name; with `sha256`, list those with equal bytes."""
        if sha256 is not None:
            records = self._read_existing(self._redis.command("SMEMBERS", keys.content(sha256)))
            own = [record for record in records if record.owner == owner and folded(name) in folded(record.name)]
            newest = sorted(own, key=lambda record: record.created_at, reverse=True)[:limit]
            with suppress(WritesRefused):  # the list can be read all the same
                for record in newest:
                    self._redis.script("tensors/use", record.id)  # the caller uses it instead of uploading it again
            return Page[TensorRecord](items=tuple(newest), next=None)
        found = find_page(self._redis, "tensor", owner, {}, name, limit, cursor)
        return Page[TensorRecord](items=self._read_existing(found.ids), next=found.next)

    def delete(self, owner: str, id: str, unused_since: int | None = None) -> str | None:
        """Delete a record; return its SHA-256 if no other record has the same bytes.

        With `unused_since` (milliseconds, by the clock of Redis), raise InUse if it was used after that.
        """
        outcome, *sha256 = self._redis.script("tensors/delete", owner, id, "" if unused_since is None else unused_since)
        if outcome == "missing":
            raise NotFound("tensor", id)
        if outcome == "used":
            raise InUse("tensor", id)
        return sha256[0] if sha256 else None

    def is_content_unused(self, sha256: str) -> bool:
        """Return whether no record has these bytes."""
        return int(self._redis.command("SCARD", keys.content(sha256))) == 0

    def take_uninspected(self) -> str | None:
        """Return the SHA-256 of a new tensor whose zeros are still to be inspected, and forget it; None without one."""
        sha256: str | None = self._redis.command("SPOP", keys.UNINSPECTED)
        return sha256

    def return_uninspected(self, sha256: str) -> None:
        """Have the zeros of a tensor inspected later."""
        self._redis.command("SADD", keys.UNINSPECTED, sha256)

    def _read_existing(self, ids: Iterable[str]) -> tuple[TensorRecord, ...]:
        """Return the records that still exist, without those of a later release."""
        found = self._redis.commands(("HMGET", keys.tensor(id), "record", "version") for id in ids)
        return tuple(
            TensorRecord.model_validate_json(text)
            for text, version in found
            if text and is_readable({"version": version})
        )


def read_axes(text: str | None) -> Axes | None:
    """Convert labels from their stored form."""
    return None if text is None else tuple(Axis.model_validate(axis) for axis in json.loads(text))
