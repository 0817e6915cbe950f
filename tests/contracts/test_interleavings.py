"""Uploads and removals of the same bytes lose no tensor and leave nothing behind, in any order of their steps."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from sparse_ncp.worker.operations.tensors import TensorOperations
from sparse_ncp.worker.store import copies, tensors
from sparse_ncp.worker.store.blobs import Blobs, Disk
from sparse_ncp.worker.store.local_blobs import LocalBlobs
from sparse_ncp.worker.store.store import Store
from tests.contracts.interleavings import SteppedBlobs, Steps, Threads, explore
from tests.contracts.memory_blobs import MemoryBlobs
from tests.support.jobs import npy, random_tensor

TENSOR = random_tensor(3, 4)
CONTENT = npy(TENSOR)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


# No test stores summaries, or what was stored before there were manifests.
SHARED = re.compile(r"tensors/[0-9a-f]{16}\.npy|tensors/[0-9a-f]{64}/(manifest|removal|pin)-.*")


class Refused(Exception):
    """The record of an upload exceeds a quota."""


class World:
    """A store, and a set that stands for the records of its only tensor."""

    def __init__(self, blobs: Any) -> None:
        self.blobs: Any = blobs
        self.store = Store(cast(Blobs, blobs), cast(Disk, blobs))
        self.records: set[str] = set()

    def is_unused(self, sha256: str) -> bool:
        return not self.records

    def upload(self, name: str, steps: Steps) -> None:
        """An accepted upload is there at once, for as long as there is its record."""
        store = Store(cast(Blobs, SteppedBlobs(self.blobs, steps, SHARED)), self.blobs)
        with store.upload() as upload:
            upload.write(CONTENT)
            upload.keep()
            steps.step(lambda: self.records.add(name))
        assert np.array_equal(store.open_tensor(SHA256), TENSOR)

    def refuse(self, steps: Steps) -> None:
        store = Store(cast(Blobs, SteppedBlobs(self.blobs, steps, SHARED)), self.blobs)
        with suppress(Refused), store.upload() as upload:
            upload.write(CONTENT)
            upload.keep()
            upload.discard(lambda sha256: steps.step(lambda: self.is_unused(sha256)))
            raise Refused

    def remove(self, steps: Steps) -> None:
        store = Store(cast(Blobs, SteppedBlobs(self.blobs, steps, SHARED)), self.blobs)
        store.remove_tensor(SHA256, lambda sha256: steps.step(lambda: self.is_unused(sha256)))

    def stored(self) -> tuple[object, ...]:
        return (*(blob.name for blob in self.blobs.list("tensors/")), *sorted(self.records))

    def assert_nothing_is_lost(self) -> None:
        if self.records:
            assert np.array_equal(self.store.open_tensor(SHA256), TENSOR)

    def clean_up(self) -> None:
        """As a worker does, an hour later."""
        records = SimpleNamespace(tensors=SimpleNamespace(is_content_unused=self.is_unused))
        for _ in range(2):  # bytes of an upload that died may be free only after its pin
            TensorOperations(cast(Any, records), self.store).remove_abandoned_uploads()


def publish(world: World, marked: bool = False) -> None:
    """Store a copy whose record was just deleted; or one with a record, marked by a removal that came too late."""
    token = "f" * 16
    manifest = {"format": 1, "sha256": SHA256, "blob": f"tensors/{token}.npy", "nbytes": len(CONTENT)}
    world.blobs.put(f"tensors/{token}.npy", CONTENT, flush=False)
    world.blobs.put(f"tensors/{SHA256}/manifest-{token}.json", json.dumps(manifest).encode(), flush=False)
    if marked:
        world.blobs.put(f"tensors/{SHA256}/removal-{token}", b"", flush=False)
        world.records.add("first")


def is_empty(world: World) -> bool:
    return [*world.blobs.list("tensors/")] == []


ACTIONS: dict[str, Callable[[World, Steps], None]] = {
    "first": lambda world, steps: world.upload("first", steps),
    "second": lambda world, steps: world.upload("second", steps),
    "refused": World.refuse,
    "removal": World.remove,
    "other removal": World.remove,
}
BEGINNINGS: dict[str, Callable[[World], None]] = {
    "nothing": lambda world: None,
    "unused": publish,
    "marked": partial(publish, marked=True),
}


@pytest.mark.parametrize(
    ("kind", "beginning", "actions", "kill", "max_switches"),
    [
        ("memory", "unused", ("first", "removal"), False, None),
        ("memory", "unused", ("first", "removal"), True, 2),
        ("memory", "unused", ("first", "removal", "other removal"), False, 2),
        ("memory", "nothing", ("first", "removal"), False, None),
        ("memory", "nothing", ("first", "removal"), True, 2),
        ("memory", "nothing", ("first", "second"), False, 2),
        ("memory", "nothing", ("first", "second"), True, 1),
        ("memory", "nothing", ("refused", "refused"), True, 1),
        ("memory", "nothing", ("first", "second", "removal"), False, 1),
        ("memory", "marked", ("first", "second"), True, 1),
        ("memory", "marked", ("second", "removal"), True, None),
        ("memory", "unused", ("first", "refused"), True, 1),
        ("local", "unused", ("first", "removal"), False, 1),
        ("local", "unused", ("first", "removal", "other removal"), False, 1),
        ("local", "nothing", ("first", "second"), False, 1),
    ],
)
def test_no_tensor_is_lost_and_nothing_is_left_in_any_order(
    kind: str,
    beginning: str,
    actions: tuple[str, ...],
    kill: bool,
    max_switches: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no order of steps depends on it
    worlds: list[World] = []

    def begin() -> tuple[Threads, Callable[[], object]]:
        tokens = (f"{number:016x}" for number in range(10))
        monkeypatch.setattr(tensors, "secrets", SimpleNamespace(token_hex=lambda _: next(tokens)))
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        worlds[:] = [World(MemoryBlobs() if kind == "memory" else LocalBlobs(tmp_path / "store"))]
        (world,) = worlds
        BEGINNINGS[beginning](world)
        return Threads([partial(ACTIONS[action], world) for action in actions]), world.stored

    def check(threads: Threads) -> None:
        (world,) = worlds
        assert threads.errors == []
        world.assert_nothing_is_lost()
        with monkeypatch.context() as later:
            later.setattr(copies, "ABANDONED_SECONDS", -1.0)
            world.clean_up()
            world.assert_nothing_is_lost()
            assert world.store.abandoned_uploads() == []
            assert world.records or "removal" in actions or beginning == "unused" or is_empty(world)
            world.records.clear()
            assert world.store.remove_tensor(SHA256, world.is_unused)
        assert is_empty(world)

    assert explore(begin, check, kill, max_switches) > 100
