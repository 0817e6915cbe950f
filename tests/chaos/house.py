"""The server under attack: `ncp serve` on one port and folder, started again when its launcher was killed."""

from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tests.stack import Server, server
from tests.worker.launched import configuration_of
from worker.configuration import Configuration
from worker.records import Records
from worker.store import Store

LEASE_SECONDS = 3.0


class House:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        self._port = 0
        self.running = self._start()
        self.configuration: Configuration = configuration_of(self.running)
        self.records = Records.of(self.configuration)
        self.store = Store(self.configuration.data)
        self.address = self.running.address

    def _start(self) -> Server:
        running = self._open.enter_context(
            server(
                self._folder,
                port=self._port,
                workers=2,
                threads=1,
                lease_seconds=LEASE_SECONDS,
                checkpoint_seconds=0.2,
                keep_alive_seconds=2.0,
                stream_seconds=600,
                min_free_bytes=0,
            )
        )
        self._port = urlsplit(running.address).port or 0
        return running

    def kill_launcher(self) -> None:
        """At once (-9), and start another: the parts die with it."""
        below = psutil.Process(self.running.process.pid).children(recursive=True)
        self.running.process.kill()
        self.running.process.wait()
        psutil.wait_procs(below, timeout=20)
        self._open.close()
        self.running = self._start()

    def stop(self) -> None:
        """As Ctrl-C does; then nothing of it may be left."""
        self._open.close()

    def processes(self) -> list[psutil.Process]:
        """Every process on this machine that works on our folder, whoever its parent is now."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("NCP_DATA") == str(self.running.data):
                    found.append(process)
            except psutil.Error:
                continue  # it has just ended, or is not ours
        return found
