"""Slices and summaries of tensors."""

from dataclasses import dataclass

from sparse_ncp.worker.rendering.request import LIGHT_BYTES, Look, Operations, Rendered


@dataclass(frozen=True)
class TensorSlice:
    """A slice of a tensor, as JSON."""

    owner: str
    id: str
    fix: str
    most: int

    def look(self, operations: Operations) -> Look:
        return Look(is_light=operations.records.tensors.get(self.owner, self.id).nbytes <= LIGHT_BYTES)

    def make(self, operations: Operations) -> Rendered:
        found = operations.tensors.slice(self.owner, self.id, self.fix, self.most)
        return Rendered(found.model_dump_json().encode())


@dataclass(frozen=True)
class TensorSummary:
    """The summary of a tensor, as JSON, which is kept with the tensor."""

    owner: str
    id: str

    def look(self, operations: Operations) -> Look:
        record = operations.records.tensors.get(self.owner, self.id)
        return Look(is_light=operations.store.summary(record.sha256) is not None)

    def make(self, operations: Operations) -> Rendered:
        return Rendered(operations.tensors.summarize(self.owner, self.id))
