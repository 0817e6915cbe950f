"""Records of tensors: who uploaded what, and whose bytes are still needed."""

from worker import keys
from worker.contract import Page, TensorRecord
from worker.errors import InUse, NotFound, QuotaReached
from worker.limits import UNLIMITED, Limits
from worker.link import Link


class TensorRecords(Link):
    def add_tensor(self, record: TensorRecord, limits: Limits = UNLIMITED) -> None:
        """QuotaReached if the owner's tensors would take more than they may."""
        limit = limits.stored_bytes
        outcome, *stored = self._run(
            "add_tensor",
            record.id,
            record.owner,
            record.sha256,
            record.model_dump_json(),
            record.nbytes,
            "" if limit is None else limit,
        )
        if outcome == "full" and limit is not None:
            raise QuotaReached(limit, stored[0], record.nbytes)

    def tensor(self, owner: str, id: str) -> TensorRecord:
        text = self._call("HGET", keys.tensor(id), "record")
        record = None if text is None else TensorRecord.model_validate_json(text)
        if record is None or record.owner != owner:
            raise NotFound("tensor", id)
        return record

    def tensors(
        self, owner: str, sha256: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[TensorRecord]:
        """The newest first; with `sha256`, the owner's records of these very bytes."""
        if sha256 is not None:
            return self._same_content(owner, sha256, limit)
        ids, following = self._page(keys.tensors(owner), limit, cursor)
        texts = [self._call("HGET", keys.tensor(id), "record") for id in ids]
        # One that was deleted while we looked is not in the list any more.
        records = [TensorRecord.model_validate_json(text) for text in texts if text]
        return Page[TensorRecord](items=tuple(records), next=following)

    def _same_content(self, owner: str, sha256: str, limit: int) -> Page[TensorRecord]:
        """One page, the newest: they all have the same bytes."""
        texts = [self._call("HGET", keys.tensor(id), "record") for id in self._call("SMEMBERS", keys.content(sha256))]
        records = [TensorRecord.model_validate_json(text) for text in texts if text]
        own = sorted((record for record in records if record.owner == owner), key=lambda record: record.created_at)
        newest = tuple(reversed(own))[:limit]
        for record in newest:
            self._run("use_tensor", record.id)  # the caller relies on it instead of uploading again
        return Page[TensorRecord](items=newest, next=None)

    def delete_tensor(self, owner: str, id: str, unused_since: int | None = None) -> str | None:
        """The digest of the bytes that no record names any more, if so: pass it to `Store.remove_tensor`.

        With `unused_since` (milliseconds, as Redis counts) only a tensor that nobody has used after that.
        """
        outcome, *sha256 = self._run("delete_tensor", owner, id, "" if unused_since is None else unused_since)
        if outcome == "missing":
            raise NotFound("tensor", id)
        if outcome == "used":
            raise InUse("tensor", id)
        return sha256[0] if sha256 else None

    def content_unused(self, sha256: str) -> bool:
        return int(self._call("SCARD", keys.content(sha256))) == 0
