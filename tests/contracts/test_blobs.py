"""Contract of the storage protocol. An implementation inherits `BlobsContract` and provides two fixtures."""

import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sparse_ncp.worker.errors import StoreFull
from sparse_ncp.worker.store.blobs import Blobs
from sparse_ncp.worker.store.local_blobs import LocalBlobs
from tests.contracts.memory_blobs import MemoryBlobs
from tests.support.machine.failing import FailingDisk
from tests.support.stack import wait_for

OpenAgain = Callable[[], Blobs]
GOOD_NAMES = ["a", "a-b_c.d", "jobs/0/factors-1/A1.npy", "a/b/c/d/e/f", "_", "-", "0" * 200, "a/b..c"]
BAD_NAMES = [
    "",
    "/",
    "a/",
    "/a",
    "a//b",
    ".",
    "..",
    "a/../b",
    "../a",
    ".a",
    "a/.b",
    "a\0b",
    "a b",
    "é",
    "a\n",
    "0" * 201,
]
SPAWN = multiprocessing.get_context("spawn")


def names(blobs: Blobs, prefix: str = "") -> list[str]:
    return [blob.name for blob in blobs.list(prefix)]


def content_of(blobs: Blobs, name: str) -> bytes:
    with blobs.open(name) as file:
        return file.read()


class BlobsContract:
    """The suite. `blobs` is an empty store; `open_again` opens it in another process, or is None."""

    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        raise NotImplementedError

    @pytest.fixture
    def open_again(self, blobs: Blobs) -> OpenAgain | None:
        return None

    # One blob

    @pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 40_000], ids=["empty", "small", "large"])
    def test_what_was_put_comes_back(self, blobs: Blobs, content: bytes) -> None:
        blobs.put("a/b", content)
        assert content_of(blobs, "a/b") == content
        found = blobs.stat("a/b")
        assert (found.name, found.nbytes) == ("a/b", len(content))
        assert -1 < found.age_seconds < 60

    def test_put_replaces(self, blobs: Blobs) -> None:
        blobs.put("a", b"long before")
        blobs.put("a", b"now")
        assert content_of(blobs, "a") == b"now"
        assert blobs.stat("a").nbytes == 3

    def test_put_if_absent_does_not_replace(self, blobs: Blobs) -> None:
        assert blobs.put_if_absent("a/b", b"first")
        assert not blobs.put_if_absent("a/b", b"second")
        assert content_of(blobs, "a/b") == b"first"
        blobs.delete("a/b")
        assert blobs.put_if_absent("a/b", b"third")
        assert content_of(blobs, "a/b") == b"third"

    def test_what_is_not_flushed_is_visible_at_once(self, blobs: Blobs) -> None:
        blobs.put("a/b", b"1", flush=False)
        assert blobs.put_if_absent("a/c", b"2", flush=False)
        assert (content_of(blobs, "a/b"), content_of(blobs, "a/c")) == (b"1", b"2")
        blobs.flush()
        assert names(blobs, "a/") == ["a/b", "a/c"]

    def test_an_absent_blob_is_not_found(self, blobs: Blobs) -> None:
        blobs.put("a/b", b"")
        for name in ("a", "b", "a/b/c", "a/c", "x/y/z"):
            for read in (blobs.open, blobs.stat, lambda name: blobs.open_range(name, 0, 1)):
                with pytest.raises(FileNotFoundError):
                    read(name)

    def test_deleting_is_final_and_may_be_repeated(self, blobs: Blobs) -> None:
        blobs.put("a/b/c", b"1")
        blobs.put("a/b/d", b"2")
        for _ in range(2):
            blobs.delete("a/b/c")
        assert names(blobs) == ["a/b/d"]
        blobs.delete("never/there")
        blobs.delete("a/b/d")
        blobs.put("a/b", b"a name that was a folder before")
        assert names(blobs) == ["a/b"]

    def test_another_content_has_another_version(self, blobs: Blobs) -> None:
        blobs.put("a", b"1")
        before = wait_for(lambda: blobs.stat("a").version, 5, "a version")
        assert blobs.stat("a").version == before
        blobs.put("a", b"2")
        assert blobs.stat("a").version != before

    # Ranges

    @pytest.mark.parametrize(("start", "nbytes"), [(0, 3), (5, 10), (0, 1000), (250, 100), (256, 5), (900, 5), (7, 0)])
    def test_a_range_is_that_part(self, blobs: Blobs, start: int, nbytes: int) -> None:
        content = bytes(range(256))
        blobs.put("a", content)
        with blobs.open_range("a", start, nbytes) as file:
            assert file.read() == content[start : start + nbytes]
        with blobs.open_range("a", start, nbytes) as file:
            assert b"".join(iter(partial(file.read, 3), b"")) == content[start : start + nbytes]

    def test_an_open_blob_is_seekable(self, blobs: Blobs) -> None:
        blobs.put("a", bytes(range(100)))
        with blobs.open("a") as file:
            assert file.seek(0, os.SEEK_END) == 100
            file.seek(10)
            assert file.read(3) == bytes([10, 11, 12])
            buffer = bytearray(4)
            assert file.readinto(buffer) == 4  # type: ignore[attr-defined]
            assert buffer == bytes([13, 14, 15, 16])

    # Names

    @pytest.mark.parametrize("name", GOOD_NAMES)
    def test_good_names(self, blobs: Blobs, name: str) -> None:
        blobs.put(name, b"1")
        assert names(blobs) == [name]
        blobs.delete(name)
        assert names(blobs) == []

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_other_names_are_refused(self, blobs: Blobs, name: str) -> None:
        for call in (
            lambda: blobs.put(name, b""),
            lambda: blobs.put_if_absent(name, b""),
            lambda: blobs.writer(name),
            lambda: blobs.open(name),
            lambda: blobs.open_range(name, 0, 1),
            lambda: blobs.stat(name),
            lambda: blobs.delete(name),
        ):
            with pytest.raises(ValueError, match="name"):
                call()
        assert names(blobs) == []

    def test_listing_is_in_order_of_the_names_and_below_the_prefix_only(self, blobs: Blobs) -> None:
        stored = ["a-b/x", "a.b", "a/x", "a/y/1", "a/y/2", "a0", "ab/x", "B/x", "a/y-1"]
        for name in stored:
            blobs.put(name, name.encode())
        assert names(blobs) == sorted(stored)
        assert names(blobs, "a/") == ["a/x", "a/y-1", "a/y/1", "a/y/2"]
        assert names(blobs, "a/y/") == ["a/y/1", "a/y/2"]
        assert names(blobs, "nothing/") == names(blobs, "a0/") == []
        assert [blob.nbytes for blob in blobs.list("a/y/")] == [5, 5]
        for prefix in ("a", "/", "../", "a//"):
            with pytest.raises(ValueError, match="prefix"):
                names(blobs, prefix)

    # Writers

    def test_a_writer_publishes_by_commit_alone(self, blobs: Blobs) -> None:
        with blobs.writer("a/b") as writer:
            for piece in (b"one", memoryview(bytearray(b"two")), b""):
                writer.write(piece)
            assert writer.nbytes == 6
            assert names(blobs) == []
            writer.commit()
            assert content_of(blobs, "a/b") == b"onetwo"
        assert names(blobs) == ["a/b"]

    def test_an_aborted_or_forgotten_write_leaves_nothing(self, blobs: Blobs) -> None:
        blobs.put("a", b"before")
        with blobs.writer("a") as writer:
            writer.write(b"after")
        with blobs.writer("a") as writer:
            writer.write(b"after")
            writer.abort()
            writer.abort()
        with suppress(RuntimeError), blobs.writer("a") as writer:
            writer.write(b"after")
            raise RuntimeError
        assert content_of(blobs, "a") == b"before"
        assert names(blobs) == ["a"]

    def test_a_large_blob_in_odd_pieces(self, blobs: Blobs) -> None:
        content = np.random.default_rng(0).bytes(40 << 20)
        sizes, place = itertools.cycle([1, 65_537, 9 << 20, 12]), 0
        with blobs.writer("large") as writer:
            while place < len(content):
                size = next(sizes)
                buffer = bytearray(content[place : place + size])
                writer.write(memoryview(buffer))
                buffer[:] = bytes(len(buffer))  # the caller's again
                place += size
            path = writer.local_path()
            assert path is None or path.read_bytes() == content
            writer.commit()
        assert content_of(blobs, "large") == content

    def test_a_path_leads_to_the_same_bytes(self, blobs: Blobs) -> None:
        blobs.put("a/b", b"content")
        path = blobs.local_path("a/b")
        if path is not None:
            assert path.read_bytes() == b"content"
            with pytest.raises(FileNotFoundError):
                blobs.local_path("a/c")

    # At the same time

    def test_a_reader_keeps_what_it_opened(self, blobs: Blobs) -> None:
        before, after = b"1" * (1 << 20), b"2" * (1 << 20)
        blobs.put("a", before)
        with blobs.open("a") as whole, blobs.open_range("a", 10, 1 << 19) as part:
            whole.read(10)
            blobs.put("a", after)
            assert whole.read() == before[10:]
            assert part.read() == before[: 1 << 19]
        with blobs.open("a") as file:
            blobs.delete("a")
            assert file.read() == after

    def test_of_many_threads_one_is_first(self, blobs: Blobs) -> None:
        with ThreadPoolExecutor(8) as pool:
            for turn in range(20):
                barrier = threading.Barrier(8)

                def claim(thread: int, name: str = f"turn/{turn}", barrier: threading.Barrier = barrier) -> bool:
                    barrier.wait()
                    return blobs.put_if_absent(name, bytes([thread]))

                won = [thread for thread, first in enumerate(pool.map(claim, range(8))) if first]
                assert len(won) == 1
                assert content_of(blobs, f"turn/{turn}") == bytes(won)

    def test_readers_never_see_a_part(self, blobs: Blobs) -> None:
        contents = [bytes([n]) * (n << 16) for n in (1, 2, 3)]
        blobs.put("a", contents[0])
        done = threading.Event()

        def write() -> None:
            for content in contents * 20:
                blobs.put("a", content, flush=False)
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        while not done.is_set():
            assert content_of(blobs, "a") in contents
        thread.join()

    def test_a_folder_may_become_empty_while_others_write_into_it(self, blobs: Blobs) -> None:
        def toggle(thread: int) -> None:
            for _ in range(200):
                blobs.put(f"jobs/j/{thread}", b"", flush=False)
                blobs.delete(f"jobs/j/{thread}")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(toggle, range(4)))
        assert names(blobs) == []

    def test_of_many_processes_one_is_first(self, blobs: Blobs, open_again: OpenAgain | None) -> None:
        if open_again is None:
            pytest.skip("the store belongs to one process")
        with SPAWN.Pool(2) as pool:
            won = pool.starmap(claim_all, [(open_again, process, 50) for process in range(2)])
        assert sorted(itertools.chain(*won)) == list(range(50))
        for process, turns in enumerate(won):
            assert all(content_of(blobs, f"turn/{turn}") == bytes([process]) for turn in turns)

    def test_a_killed_writer_leaves_nothing_to_see(self, blobs: Blobs, open_again: OpenAgain | None) -> None:
        if open_again is None:
            pytest.skip("the store belongs to one process")
        blobs.put("steady", b"before")
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=write_until_killed, args=(open_again, theirs))
        process.start()
        assert ours.poll(30)
        seen = ours.recv()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert seen == "writing"
        assert content_of(blobs, "steady") in (b"before", b"1" * (1 << 20), b"2" * (1 << 20))
        assert names(blobs) == ["steady"]


def claim_all(open_again: OpenAgain, process: int, turns: int) -> list[int]:
    blobs = open_again()
    return [turn for turn in range(turns) if blobs.put_if_absent(f"turn/{turn}", bytes([process]), flush=False)]


def write_until_killed(open_again: OpenAgain, pipe: "multiprocessing.connection.Connection") -> None:
    blobs = open_again()
    writer = blobs.writer("half")
    writer.write(bytes(1 << 20))
    pipe.send("writing")
    for digit in itertools.cycle((b"1", b"2")):
        blobs.put("steady", digit * (1 << 20))


class TestMemoryBlobs(BlobsContract):
    """Blobs in memory, which show that nothing above the protocol needs a local disk."""

    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return MemoryBlobs()


class TestLocalBlobs(BlobsContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> LocalBlobs:
        return LocalBlobs(tmp_path / "data")

    @pytest.fixture
    def open_again(self, blobs: Blobs) -> OpenAgain:
        assert isinstance(blobs, LocalBlobs)
        return partial(LocalBlobs, blobs.root)

    def test_all_is_private_and_nothing_is_left(self, blobs: LocalBlobs) -> None:
        blobs.put("a/b/c", b"1")
        with blobs.writer("a/d") as writer:
            writer.write(b"2")
        found = {str(path.relative_to(blobs.root)) for path in blobs.root.rglob("*")}
        assert found == {"uploads", "a", "a/b", "a/b/c"}
        assert all(path.stat().st_mode & 0o077 == 0 for path in [blobs.root, *blobs.root.rglob("*")])
        blobs.delete("a/b/c")
        assert {path.name for path in blobs.root.rglob("*")} == {"uploads", "a"}

    def test_a_full_disk_changes_nothing(self, blobs: LocalBlobs) -> None:
        blobs.put("a", b"before")
        with room_for(1000), blobs.writer("c") as writer:
            for write in (
                lambda: blobs.put("a", bytes(2000)),
                lambda: blobs.put_if_absent("b", bytes(2000)),
                lambda: writer.write(bytes(2000)),
            ):
                with pytest.raises(StoreFull):
                    write()
        assert names(blobs) == ["a"]
        assert content_of(blobs, "a") == b"before"

    def test_a_failing_disk_is_unavailable_and_then_as_before(self, tmp_path: Path) -> None:
        """It runs in its own process, in which system calls on the folder fail."""
        disk = FailingDisk(tmp_path / "failing", tmp_path / "data")
        command = [sys.executable, "-c", FAILING, str(tmp_path / "data")]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **disk.environment}
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            with disk.failing(5):
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "StoreUnavailable " * 6 + "\n"
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "b'before'\n"

    def test_unfinished_writes_of_the_dead_are_listed_and_of_the_living_not(
        self, blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sparse_ncp.worker.store.local_blobs.UNLOCKED_SECONDS", -1.0)
        (blobs.root / "uploads" / "dead").write_bytes(b"half")
        with blobs.writer("a") as writer:
            writer.write(b"1")
            assert [(found.name, found.nbytes) for found in blobs.unfinished()] == [("uploads/dead", 4)]
        blobs.discard("uploads/dead")
        assert blobs.unfinished() == []


FAILING = """
import sys
from pathlib import Path
from sparse_ncp.worker.store.local_blobs import LocalBlobs

blobs = LocalBlobs(Path(sys.argv[1]))
blobs.put("a/b", b"before")
print("ready", flush=True)
sys.stdin.readline()
for call in (
    lambda: blobs.put("a/b", b"after"), lambda: blobs.put_if_absent("a/c", b""), lambda: blobs.writer("a/d"),
    lambda: blobs.open("a/b"), lambda: blobs.stat("a/b"), lambda: list(blobs.list("a/")),
):
    try:
        call()
        print("nothing", end=" ")
    except Exception as error:
        print(type(error).__name__, end=" ")
print(flush=True)
sys.stdin.readline()
print(blobs.open("a/b").read(), flush=True)
"""


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """No file may grow beyond this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
