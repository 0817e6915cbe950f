"""Requests of renderers: small values in, the bytes of an answer out."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.models import ModelOperations
from sparse_ncp.worker.operations.studies import StudyOperations
from sparse_ncp.worker.operations.tensors import TensorOperations
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.blobs import OpenFile
from sparse_ncp.worker.store.local import open_store
from sparse_ncp.worker.store.store import Store

# Factors and tensors up to this size are read, and their entries written as JSON, in a few milliseconds.
LIGHT_BYTES = 1 << 17


@dataclass(frozen=True)
class Operations:
    """The records and files that requests are answered from."""

    records: Records
    store: Store
    jobs: JobOperations
    models: ModelOperations
    studies: StudyOperations
    tensors: TensorOperations

    @classmethod
    def of(cls, configuration: Configuration, reads_factors: bool = True) -> Self:
        """Open records and store. Without `reads_factors`, a table that compares models raises FactorsNeeded."""
        records, store = Records.of(configuration, configuration.redis_answer_seconds), open_store(configuration)
        return cls(
            records,
            store,
            JobOperations(records, store, configuration),
            ModelOperations(records, store),
            StudyOperations(records, store, configuration, reads_factors),
            TensorOperations(records, store, configuration.min_free_bytes),
        )


class Rendered(NamedTuple):
    """The content of an answer, and the iteration of the factors in it."""

    content: bytes
    iteration: int | None = None


class Look(NamedTuple):
    """Knowledge about a request before anything is made.

    Attributes
    ----------
    ready : OpenFile or None
        The answer, if it is stored in this form.
    inputs : str or None
        Identifies everything that the answer depends on. None if that is unknown, or the answer is not stored.
    is_light : bool
        Whether the answer is quick to make, so that the API makes it itself.
    revision : str
        Changes with the record. Clients share an answer that is not stored if it is made for the same revision.
    """

    ready: OpenFile | None = None
    inputs: str | None = None
    is_light: bool = False
    revision: str = ""


class Rendering(Protocol):
    """A request. It is sent to another process, so it has plain values only; equal ones have equal `repr`."""

    @property
    def owner(self) -> str:
        """The owner who sent the request, and who must own the record."""

    @property
    def id(self) -> str:
        """The id of the job, study or tensor: its deletion removes what was made from it."""

    def look(self, operations: Operations) -> Look:
        """Check that the record exists and belongs to the owner, and look for the answer, quickly.

        Raises
        ------
        NotFound, NoFactorsYet
            There is nothing to make it from.
        """

    def make(self, operations: Operations) -> Rendered | OpenFile:
        """Make the answer, however long that takes."""
