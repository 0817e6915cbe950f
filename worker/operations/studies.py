"""Operations on a study together with its runs and files: submit, get, delete, read events."""

import json
import math

from sparse_ncp.solvers.studies.settings import Validation
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import TERMINAL, Event, TensorRecord
from sparse_ncp.worker.operations.admission import Inputs, check_job
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.result_sizes import result_size
from sparse_ncp.worker.operations.study_admission import check_study, stability_run
from sparse_ncp.worker.operations.study_tables import StudyTables
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits
from sparse_ncp.worker.records.events import START
from sparse_ncp.worker.records.jobs import request_record, settings_record
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.records.studies import Plan, PlannedCell
from sparse_ncp.worker.store.store import Store
from sparse_ncp.worker.study_contract import ChooseRequest, CompareFields, StabilityRequest, Study, StudyRequest

# Entries times components up to which a run takes about as long as starting a process; such runs share one.
SHARED_SIZE = 1 << 20


class StudyOperations:
    """Submit, read and delete studies. With `reads_factors=False`, a table may raise FactorsNeeded."""

    def __init__(
        self, records: Records, store: Store, configuration: Configuration, reads_factors: bool = True
    ) -> None:
        self._records = records
        self._store = store
        self._configuration = configuration
        self._jobs = JobOperations(records, store, configuration)
        self.tables = StudyTables(records, store, reads_factors)

    def submit(
        self,
        owner: str,
        request: StudyRequest,
        key: str | None = None,
        limits: Limits = UNLIMITED,
        request_id: str | None = None,
    ) -> tuple[Study, bool]:
        """Queue all runs of a study and wake workers; a repeated key and body return the same study and True."""
        earlier = self._records.studies.replay(owner, request, key) if key is not None else None
        if earlier is not None:
            return earlier, True
        memory = self._configuration.max_job_memory_bytes
        if isinstance(request, StabilityRequest):
            run = stability_run(request, owner, self._records)
            check_job(run, owner, limits, Inputs(self._records, self._store), memory)
            tensor = self._records.tensors.get(owner, request.tensor_id)
            record = request_record(run, limits.job_seconds, request_id)
            size = result_size(run.settings(), tensor)
            only = PlannedCell("run", run.method, False, record, None, size.kept, size.label_copies)
            plan = Plan("", [only], [0], working=size.working)
        else:
            threads = self._configuration.threads_per_job
            run, tensor = None, check_study(request, owner, limits, self._records, self._store, memory, threads)
            plan = _plan(request, tensor, limits.job_seconds, request_id, self._configuration.workers)
        study, replayed = self._records.studies.submit(owner, request, plan, tensor.shape, key, limits, run)
        if not replayed:
            for _ in range(min(plan.count, self._configuration.workers)):
                self._jobs.wake_worker()
        return study, replayed

    def get(self, owner: str, id: str) -> Study:
        """Return a study, a comparison with its table."""
        study = self._records.studies.get(owner, id)
        if study.kind != "compare":
            return study
        return study.model_copy(update={"table": self.tables.table(study)})

    def delete(self, owner: str, id: str) -> None:
        """Delete a study that has ended, with its runs, factors and histories."""
        self._records.studies.delete(owner, id)
        self.finish_deletion(id)

    def finish_deletion(self, id: str) -> int:
        """Remove the runs of a deleted study and return their number; a cleanup completes an interrupted removal."""
        removed = 0
        while runs := self._records.studies.erase(id):
            for run in runs:
                self._jobs.remove_files(run)
            removed += len(runs)
        self._store.rendered.discard(id)
        return removed

    def nbytes(self, id: str) -> int:
        """Return the bytes that the runs take on disk."""
        return sum(self._store.job(run.id).nbytes() for run in self._records.studies.runs(id))

    # Events, as of a job

    def events_after(self, id: str, event_id: str | None = None, count: int = 1000) -> list[Event]:
        """Return at most `count` events after the one with this id, in order."""
        return self._records.events.after(id, event_id or START, count)

    def has_ended(self, id: str) -> bool:
        return self._records.studies.find(id).state in TERMINAL

    def preparing(self, id: str) -> None:
        """Return None: a study publishes its steps as `progress`."""


def _plan(
    request: CompareFields | ChooseRequest,
    tensor: TensorRecord,
    max_seconds: float | None,
    request_id: str | None,
    workers: int,
) -> Plan:
    """Return the runs of a study: those of a comparison differ in the settings of their cell and in the seed."""
    if isinstance(request, ChooseRequest):
        run = request.run()
        text, size = request_record(run, max_seconds, request_id), result_size(run.settings(), tensor)
        only = PlannedCell("choose", run.method, False, text, None, size.kept, size.label_copies)
        return Plan("", [only], [request.seed], working=request.seeds * size.working)
    grid, entries = request.grid, math.prod(tensor.shape)
    cells, example = grid.cells, request.run(grid.cells[0])
    of_cells = [grid.settings(cell, 0) for cell in cells]
    stored_settings = [settings_record(settings, max_seconds) for settings in of_cells]
    first = stored_settings[0]
    same = {"request_id": request_id, "fixed_modes": None if example.fixed is None else list(example.fixed.modes)}
    varying = [name for name in first if any(other[name] != first[name] for other in stored_settings)]
    shared = {name: value for name, value in first.items() if name not in (*varying, "seed")}
    common = f'{json.dumps(same)[:-1]}, "settings": {json.dumps(shared)[:-1]}'
    planned, working = list[PlannedCell](), 0
    for cell, settings, own in zip(cells, of_cells, stored_settings, strict=True):
        text = "".join(f', "{name}": {json.dumps(own[name])}' for name in varying)
        is_shared = entries * cell.rank <= SHARED_SIZE and example.initial is None
        size = result_size(settings, tensor, compact=is_shared)
        planned.append(PlannedCell("run", cell.method, is_shared, text, str(cell), size.kept, size.label_copies))
        working = max(working, size.working)
    validation = None
    if request.validation != Validation():
        text = json.dumps({"name": "validation", "settings": first, **same})
        validation = PlannedCell("validate", cells[0].method, False, text)
    seeds = [request.seed + repeat for repeat in range(request.repeats)]
    return Plan(common, planned, seeds, validation, working * min(workers, len(cells) * len(seeds)))
