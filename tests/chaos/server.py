"""The server under attack: `ncp serve` on one port and folder, started again when its launcher was killed."""

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import psutil

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.tensors import TensorOperations
from sparse_ncp.worker.processes import die_with_parent
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.store.local import LocalStore
from tests.chaos.machine import LEASE_SECONDS, Machine
from tests.support.machine.network import PORT
from tests.support.processes import configuration_of
from tests.support.stack import ROOT, Server, descendants, end_tree, server

# Short, so that jobs are paused and resumed all the time.
TURN_SECONDS = 3.0
COMMON: dict[str, Any] = {
    "threads": 1,
    "lease_seconds": LEASE_SECONDS,
    "turn_seconds": TURN_SECONDS,
    "checkpoint_seconds": 0.2,
    "min_free_bytes": 0,
}

STARTS = 3


class ChaosServer:
    """With a second worker on another machine, where there is one."""

    def __init__(self, folder: Path, machine: Machine | None = None) -> None:
        self._folder = folder
        self.machine = machine
        self._open = ExitStack()
        self._elsewhere: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.running = self._start()
        self.configuration: Configuration = configuration_of(self.running)
        self.records = ExecutionRecords.of(self.configuration)
        self.store = LocalStore(self.configuration.data)
        self.jobs = JobOperations(self.records, self.store, self.configuration)
        self.tensors = TensorOperations(self.records, self.store)
        self.address = self.running.address

    def _start(self) -> Server:
        """Start it as systemd does, and again if it is not ready in time, since the machine may be busy."""
        for _ in range(STARTS - 1):
            with suppress(TimeoutError, RuntimeError):
                return self._started()
        return self._started()

    def _started(self) -> Server:
        settings = self.machine.settings() if self.machine else {}
        environment = self.machine.environment() if self.machine else {}
        with patch.dict(os.environ, environment):
            running = self._open.enter_context(
                server(
                    self._folder,
                    port=self._port,
                    workers=2,
                    keep_alive_seconds=2.0,
                    stream_seconds=600,
                    **COMMON,
                    **settings,
                )
            )
        self._port = urlsplit(running.address).port or 0
        return running

    def keep_other_worker(self) -> None:
        """Start the worker on the other machine if it does not run, as the operator of that machine would."""
        if self.machine is None or self.machine.other is None:
            return
        if self._elsewhere is None or self._elsewhere.poll() is not None:
            redis_url = f"redis://{self.machine.other.address}:{PORT}/0"
            configuration = Configuration(data=self.running.data, redis_url=redis_url, **COMMON)
            command = [*self.machine.other.command, sys.executable, "-m", "sparse_ncp.app.cli.main", "worker"]
            with (self._folder / "other.log").open("ab") as output:
                environment = {**os.environ, **self.machine.environment(), **configuration.environment()}
                self._elsewhere = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - one system call
                )

    def cut_power(self) -> None:
        """Simulate a power failure of the machine: what was not flushed is lost, and everything is restarted."""
        assert self.machine is not None
        assert self.machine.disk is not None
        self.machine.disk.cut_power()
        self._kill_all()
        self.machine.disk.unmount()
        self.machine.disk.mount()
        self.running = self._start()

    def kill_launcher(self) -> None:
        """At once (-9), and start another: the parts die with it."""
        self._kill_tree(self.running.process)
        self._open.close()
        self.running = self._start()

    def _kill_all(self) -> None:
        self._kill_tree(self.running.process)
        if self._elsewhere is not None:
            self._kill_tree(self._elsewhere)
        self._open.close()

    def _kill_tree(self, process: "subprocess.Popen[bytes]") -> None:
        below = descendants(process.pid)
        process.kill()
        process.wait()
        psutil.wait_procs(below, timeout=20)

    def stop(self) -> None:
        """As Ctrl-C does; then nothing of it may be left."""
        if self._elsewhere is not None:
            end_tree(self._elsewhere)
        self._open.close()

    def processes(self) -> list[psutil.Process]:
        """Return all processes of this machine that use our folder, whatever their parent is now."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("NCP_DATA") == str(self.running.data):
                    found.append(process)
            except psutil.Error:
                continue  # it has just ended, or is not ours
        return found
