"""The files of one job: its checkpoints, factors, diagnostics and history."""

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256

from sparse_ncp.solvers import Diagnostics, InvalidInput, Stability, State
from sparse_ncp.solvers.runtime import Array
from sparse_ncp.worker.contract import Event, Export, JobResult, JobStability, Progress, Source
from sparse_ncp.worker.errors import NoFactorsYet
from sparse_ncp.worker.store import history, manifests
from sparse_ncp.worker.store.blobs import Blobs, Disk, OpenFile, StoredItem
from sparse_ncp.worker.store.exports import export, read_model
from sparse_ncp.worker.store.manifests import Manifest, publish, read_manifest, withdraw
from sparse_ncp.worker.store.results import ALL, open_result, write_factors

# Checkpoints kept besides the last: a disk may spoil a file after it was written.
SPARE_CHECKPOINTS = 1
# How often to look again for factors that are deleted before they can be opened.
TRIES = 20
# A half-written publication this old was left by a process that died.
WRITING_SECONDS = 3600.0
STATE, SOURCE, INITIAL = "state", "source.json", f"initial/{ALL}"
DIAGNOSTICS, STABILITY = "diagnostics.json", "stability.json"
# Attempt, iteration, digest. Attempts never collide, nor does a state with the same one that has a reason to stop.
CHECKPOINT = re.compile(r"checkpoint-(\d+)-(\d+)-[0-9a-f]{16}")
# A file of its own, with its whole digest in the name: from before checkpoints had manifests.
UNVERSIONED_CHECKPOINT = re.compile(r"checkpoint-\d+-\d+-([0-9a-f]{64})\.npz")
# Factors of a checkpoint, by its iteration, made for readers.
PARTIAL = re.compile(r"partial-(\d+)(-[0-9a-f]{8})?")
FACTORS = re.compile(r"factors-(\d+)")
# Of these, an ended job keeps its final factors alone.
SUPERSEDED = ("checkpoint-", "partial-", "factors-", "pieces")


class JobFiles:
    """The files of a job, as blobs below `jobs/<id>/`.

    Checkpoints and factors are folders that a manifest publishes. A later attempt writes other folders than an earlier
    one, so that neither can replace what the other wrote.

    Parameters
    ----------
    blobs : Blobs
        The store.
    disk : Disk
        Where exports are made.
    job_id : str
        The job.
    deferred : bool, optional
        If True, nothing is flushed and factors are compact: the caller flushes the files of many jobs at once.
    """

    def __init__(self, blobs: Blobs, disk: Disk, job_id: str, deferred: bool = False) -> None:
        self._blobs = blobs
        self._disk = disk
        self._id = job_id
        self._root = f"jobs/{job_id}"
        self._deferred = deferred

    def nbytes(self) -> int:
        """Return the size of all files."""
        return sum(blob.nbytes for blob in self._blobs.list(f"{self._root}/"))

    # Checkpoints

    def save_checkpoint(self, fence: int, state: State) -> str:
        """Save the state of a run, and return the name of the checkpoint for the job's record."""
        return self.save_study_checkpoint(fence, state.iteration, state.to_bytes())

    def save_study_checkpoint(self, fence: int, place: int, content: bytes) -> str:
        """Save the state of a study's task; `place` must grow from one checkpoint to the next."""
        name = f"checkpoint-{fence}-{place}-{sha256(content).hexdigest()[:16]}"
        publish(self._blobs, f"{self._root}/{name}", [(STATE, content)], {"iteration": place})
        return name

    def study_checkpoint(self, name: str) -> bytes | None:
        """Return the content of a checkpoint; None if it was deleted or is damaged."""
        unversioned = UNVERSIONED_CHECKPOINT.fullmatch(name)
        if unversioned is not None:
            stored = self._read(name) or b""
            return stored if sha256(stored).hexdigest() == unversioned[1] else None
        manifest = read_manifest(self._blobs, f"{self._root}/{name}") if CHECKPOINT.fullmatch(name) else None
        if manifest is None or STATE not in manifest.files:
            return None
        try:
            with self._blobs.open(f"{manifest.folder}/{STATE}") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        return content if sha256(content).hexdigest() == manifest.files[STATE].sha256 else None

    def load_checkpoint(self, name: str) -> State | None:
        """Return the state; None if it is gone, damaged or of another version. A run without it gets the same bits."""
        content = self.study_checkpoint(name)
        try:
            return None if content is None else State.from_bytes(content)
        except InvalidInput:
            return None

    def last_checkpoint(self, name: str) -> State | None:
        """Return the state called `name`; if it is damaged, the furthest that is whole; None if there is none."""
        names = [name, *(other for other in self._checkpoints() if other != name)]
        return next((state for state in map(self.load_checkpoint, names) if state is not None), None)

    def drop_checkpoints(self, keep: str) -> None:
        """Delete all checkpoints but one and a spare, once the record names that one."""
        others = [name for name in self._checkpoints() if name != keep]
        for name in others[SPARE_CHECKPOINTS:]:
            withdraw(self._blobs, f"{self._root}/{name}")
        kept = CHECKPOINT.fullmatch(keep)
        for iteration, name in self._numbered(PARTIAL):
            if kept is not None and iteration < int(kept[2]):
                withdraw(self._blobs, f"{self._root}/{name}")

    def tidy(self) -> None:
        """Delete files that an ended job does not need, and unfinished files of killed attempts.

        A job without final factors keeps its last checkpoint.
        """
        self._blobs.delete(f"{self._root}/{INITIAL}")
        begun = [name for name in self._folders() if name.startswith(("checkpoint-", "factors-"))]
        published = set(self._folders(published=True))
        for name in (name for name in begun if name not in published):
            withdraw(self._blobs, f"{self._root}/{name}")
        if history.is_complete(self._blobs, self._root):
            history.discard_pieces(self._blobs, self._root)
        for item in self.superseded():
            self.discard(item)

    def superseded(self) -> list[StoredItem]:
        """List files beside the final factors: checkpoints, their factors, and factors of other attempts."""
        final = self._final()
        kept = final.folder.rpartition("/")[2] if final else ""
        sizes: dict[str, int] = {}
        for blob in self._blobs.list(f"{self._root}/") if final else ():
            name = blob.name.split("/")[2]
            if name != kept and name.startswith(SUPERSEDED):
                sizes[name] = sizes.get(name, 0) + blob.nbytes
        return [StoredItem(f"{self._root}/{name}", nbytes) for name, nbytes in sizes.items()]

    def half_written(self) -> list[StoredItem]:
        """List folders that were never published, of writers that died an hour ago or earlier."""
        blobs, found = list(self._blobs.list(f"{self._root}/")), dict[str, int]()
        published = set(self._folders(published=True))
        for blob in blobs:
            name = blob.name.split("/")[2]
            if name.startswith(("checkpoint-", "factors-", "partial-")) and name not in published:
                if blob.age_seconds < WRITING_SECONDS:
                    return []
                found[name] = found.get(name, 0) + blob.nbytes
        return [StoredItem(f"{self._root}/{name}", nbytes) for name, nbytes in found.items()]

    def discard(self, item: StoredItem) -> None:
        """Delete a folder or file that `superseded` or `half_written` has listed."""
        withdraw(self._blobs, item.name)
        self._blobs.delete(item.name)

    def remove(self) -> None:
        """Delete all files, manifests first."""
        for name in self._folders(published=True):
            self._blobs.delete(f"{self._root}/{name}/{manifests.FILE}")
        for blob in self._blobs.list(f"{self._root}/"):
            self._blobs.delete(blob.name)

    def _folders(self, published: bool = False) -> Iterator[str]:
        """List the names of folders; only those with a manifest, if asked."""
        seen = set()
        for blob in self._blobs.list(f"{self._root}/"):
            folder, _, file = blob.name.removeprefix(f"{self._root}/").rpartition("/")
            if folder and folder not in seen and (file == manifests.FILE or not published):
                seen.add(folder)
                yield folder

    def _numbered(self, kind: re.Pattern[str], group: int = 1) -> list[tuple[int, str]]:
        """List the published folders of a kind with their numbers, the highest first."""
        found = ((kind.fullmatch(name), name) for name in self._folders(published=True))
        return sorted(((int(match[group]), name) for match, name in found if match), reverse=True)

    def _checkpoints(self) -> list[str]:
        """List the checkpoints, the furthest first. Attempts agree bit for bit, so it does not matter whose it is."""
        return [name for _, name in self._numbered(CHECKPOINT, group=2)]

    # Factors

    def save_source(self, source: Source) -> None:
        """Save the source of the job, for the metadata of its factors; called before any checkpoint or factors."""
        self._blobs.put_if_absent(f"{self._root}/{SOURCE}", source.model_dump_json().encode(), flush=not self._deferred)

    def save_factors(
        self,
        fence: int,
        state: State,
        result: JobResult,
        factors: Sequence[Array] | None = None,
        stability: Stability | None = None,
    ) -> None:
        """Publish the final factors of an attempt. Those of a later attempt take precedence.

        Without `factors` they are those of the state, with zeros in the rows of excluded indices.
        """
        folder, deferred = f"{self._root}/factors-{fence}", self._deferred
        write_factors(self._blobs, folder, state, result, self._source(), deferred, factors, stability)

    def open_factors(self, name: str) -> OpenFile:
        """Open `factors.npz`, `factors.mat` or `A1.npy` …: of the finished job, else of its last checkpoint.

        Raises
        ------
        NoFactorsYet
            There is no checkpoint yet.
        NotFound
            No job has a file of this name.
        """
        for _ in range(TRIES):
            # Once more at the end: the job may have ended, and its checkpoints gone, in between.
            with suppress(FileNotFoundError):
                manifest = self._final() or self._partial() or self._final()
                if manifest is None:
                    raise NoFactorsYet(self._id)
                try:
                    return open_result(self._blobs, self._disk, manifest, name)
                except FileNotFoundError:  # deleted before it could be opened
                    if PARTIAL.fullmatch(manifest.folder.rpartition("/")[2]):
                        withdraw(self._blobs, manifest.folder)
        raise NoFactorsYet(self._id)

    def published(self) -> Manifest | None:
        """Return the manifest of the factors that `open_factors` opens; None if they have to be made first.

        Raises
        ------
        NoFactorsYet
            There is no checkpoint yet.
        """
        manifest = self._final()
        if manifest is not None:
            return manifest
        checkpoints, partials = self._numbered(CHECKPOINT, group=2), dict(self._numbered(PARTIAL))
        if checkpoints:
            name = partials.get(checkpoints[0][0])
            return None if name is None else read_manifest(self._blobs, f"{self._root}/{name}")
        manifest = self._final()  # the job may have ended in between
        if manifest is None:
            raise NoFactorsYet(self._id)
        return manifest

    def open_published(self, name: str) -> OpenFile | None:
        """Open a file of the factors if it is there as it is; None if it has to be made: see `open_factors`."""
        manifest = self.published()
        if manifest is None or (name not in manifest.files and "seconds" in manifest.about):
            return None
        with suppress(FileNotFoundError):  # replaced by a later one
            return open_result(self._blobs, self._disk, manifest, name)
        return None

    def export(self, asked: Export) -> tuple[bytes, int | None]:
        """Return the factors in another format, and their iteration."""
        opened = self.open_factors(ALL)
        with opened.file as file:
            return export(read_model(file), asked), opened.iteration

    def factors(self) -> list[Array]:
        """Return the factors: final, else of the last checkpoint."""
        with self.open_factors(ALL).file as file:
            return list(read_model(file).factors)

    def _source(self) -> Source | None:
        """Return what was saved; None for a job that an older version has run."""
        content = self._read(SOURCE)
        return None if content is None else Source.model_validate_json(content)

    def _final(self) -> Manifest | None:
        """Find the final factors of the last attempt that published any."""
        folders = (f"{self._root}/{name}" for _, name in self._numbered(FACTORS))
        return next((found for found in (read_manifest(self._blobs, folder) for folder in folders) if found), None)

    def _partial(self) -> Manifest | None:
        """Find the factors of the last checkpoint, published at the first request.

        FileNotFoundError if the checkpoints are deleted meanwhile.
        """
        checkpoints, partials = self._numbered(CHECKPOINT, group=2), dict(self._numbered(PARTIAL))
        for iteration, name in checkpoints:
            if iteration in partials:
                return read_manifest(self._blobs, f"{self._root}/{partials[iteration]}")
            state = self.load_checkpoint(name)
            if state is not None:
                folder = f"{self._root}/partial-{iteration}-{secrets.token_hex(4)}"
                made = write_factors(self._blobs, folder, state, source=self._source())
                if self._final() is not None or name not in self._checkpoints():
                    withdraw(self._blobs, folder)  # the job has ended, or was deleted, and was tidied before
                    raise FileNotFoundError(name)
                return made
        for _, name in checkpoints:
            self._blobs.stat(f"{self._root}/{name}/{manifests.FILE}")
        return None

    # Diagnostics

    def save_diagnostics(self, diagnostics: Diagnostics) -> None:
        """Save the diagnostics, before the factors, so that every ended job has them. All attempts save the same."""
        content = json.dumps(asdict(diagnostics)).encode()
        self._blobs.put(f"{self._root}/{DIAGNOSTICS}", content, flush=not self._deferred)

    def diagnostics(self) -> bytes | None:
        """Return the diagnostics as JSON; None if there are none."""
        return self._read(DIAGNOSTICS)

    def save_stability(self, stability: Stability) -> None:
        """Save it before the factors, as the diagnostics."""
        content = JobStability.of(stability).model_dump_json().encode()
        self._blobs.put(f"{self._root}/{STABILITY}", content, flush=not self._deferred)

    def stability(self) -> bytes | None:
        """Return it as JSON; None if there is none."""
        return self._read(STABILITY)

    def _read(self, name: str) -> bytes | None:
        try:
            with self._blobs.open(f"{self._root}/{name}") as file:
                return file.read()
        except FileNotFoundError:
            return None

    # The factors to start from

    def freeze_initial(self, other: "JobFiles") -> list[Array]:
        """Copy the factors of another job once, so that later calls return the same, even if that job goes on."""
        name = f"{self._root}/{INITIAL}"
        try:
            self._blobs.stat(name)
        except FileNotFoundError:
            with other.open_factors(ALL).file as file:
                self._blobs.put_if_absent(name, file.read())
        with self._blobs.open(name) as file:
            return list(read_model(file).factors)

    # History

    def collected_length(self) -> int:
        """Return how many iterations of the event stream `collect_history` has stored."""
        return history.collected_length(self._blobs, self._root)

    def collect_history(self, rows: Sequence[Progress], changes: Sequence[Event]) -> None:
        """Add a piece of the event stream: the numbers of the next iterations, and changes of state with their ids."""
        history.collect(self._blobs, self._root, rows, changes)

    def collected_events(self, after: tuple[int, int], count: int) -> list[Event]:
        """Return at most `count` collected events after that iteration and number; none once the history is whole."""
        return history.read_collected(self._blobs, self._root, after, count)

    def complete_history(self) -> None:
        """Publish the collected pieces as the history of the job."""
        history.complete(self._blobs, self._root)

    def save_history(self, rows: Sequence[Progress], changes: Sequence[Event]) -> None:
        """Publish a short event stream at once."""
        history.write(self._blobs, self._root, rows, changes, flush=not self._deferred)

    def history(self, after: int = 0, count: int | None = None) -> list[Progress]:
        """Return at most `count` iterations after `after`, of a job that has ended."""
        return history.read_history(self._blobs, self._root, after, count)

    def changes(self) -> list[Event]:
        """Return the changes of state, of a job that has ended."""
        return history.read_changes(self._blobs, self._root)
