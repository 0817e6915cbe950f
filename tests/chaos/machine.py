"""Manipulate the machine of the server: its disk, the clock of its Redis, and the network to another machine."""

import errno
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.machine.clock import RedisClock
from tests.support.machine.compiled import compiler
from tests.support.machine.disk import LoopDisk, can_cut_power, covered_read_only, has_own_mounts
from tests.support.machine.failing import FailingDisk
from tests.support.machine.network import PORT, OtherMachine, has_namespaces

MEGABYTES = 2048
LEASE_SECONDS = 3.0
# Within the life of an Idempotency-Key, which ends by the same clock.
LONGEST_STEP_SECONDS = 6 * 3600


class Machine:
    """Attacks that are not allowed here are None, and named in `skipped`."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        self.skipped: list[str] = []
        self.disk = (
            LoopDisk(folder, self.data, MEGABYTES) if self._allowed("power cut", can_cut_power(), "loop") else None
        )
        self.other = OtherMachine() if self._allowed("partition", has_namespaces(), "namespaces") else None
        self.clock: RedisClock | None = None
        self.failing: FailingDisk | None = None
        if self._allowed("clock step, disk failure", compiler() is not None, "compiler"):
            listen = ["--bind", self.other.address, "--port", str(PORT), "--protected-mode", "no"] if self.other else []
            self.clock = RedisClock(folder / "clock", *listen)
            self.failing = FailingDisk(folder / "failing", self.data)
        elif self.other is not None:
            self.other.end()  # only the wrapper of the clock lets Redis listen to it
            self.other = None
        self._allowed("read-only disk", has_own_mounts(), "root")

    def _allowed(self, what: str, yes: bool, lacking: str) -> bool:
        if not yes:
            self.skipped.append(f"{what} ({lacking})")
        return yes

    def settings(self) -> dict[str, object]:
        """For the server on this machine."""
        return {"redis_server": self.clock.redis_server} if self.clock else {}

    def environment(self) -> Mapping[str, str]:
        """Beside our own, for every process of the server."""
        return self.failing.environment if self.failing else {}

    def attacks(self, dice: random.Random) -> Mapping[str, tuple[int, Callable[[], bool]]]:
        """Return the attacks with their weights, as in `Attacks`. Power cuts are in the server, which restarts then."""
        found: dict[str, tuple[int, Callable[[], bool]]] = {}
        if has_own_mounts():
            found["disk read-only"] = 2, lambda: self._make_read_only(dice)
        if self.failing is not None:
            found["disk failed"] = 2, lambda: self._fail(dice)
        if self.clock is not None:
            found["clock stepped"] = 3, lambda: self._step(dice)
        if self.other is not None:
            found["other machine cut off"] = 2, lambda: self._cut_off(dice)
        return found

    def end(self) -> None:
        if self.other is not None:
            self.other.end()
        if self.disk is not None:
            self.disk.unmount()

    def _make_read_only(self, dice: random.Random) -> bool:
        with covered_read_only(self.data):
            time.sleep(dice.uniform(0.5, 2) * LEASE_SECONDS)
        return True

    def _fail(self, dice: random.Random) -> bool:
        assert self.failing is not None
        with self.failing.failing(dice.choice((errno.EIO, errno.ESTALE))):
            time.sleep(dice.uniform(0.5, 2) * LEASE_SECONDS)
        return True

    def _step(self, dice: random.Random) -> bool:
        assert self.clock is not None
        self.clock.set(dice.choice((0, dice.uniform(-1, 1) * 60, dice.uniform(-1, 1) * LONGEST_STEP_SECONDS / 2)))
        return True

    def _cut_off(self, dice: random.Random) -> bool:
        assert self.other is not None
        with self.other.cut_off():
            time.sleep(dice.uniform(0.5, 3) * LEASE_SECONDS)
        return True
