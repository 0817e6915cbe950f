"""The pool of renderers of one API process: a fair queue, equal requests answered once, and the template process."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from anyio import to_thread

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import RenderingRefused, RenderingTooLong
from sparse_ncp.worker.logs import log_context
from sparse_ncp.worker.operations.study_tables import FactorsNeeded
from sparse_ncp.worker.processes import stop
from sparse_ncp.worker.rendering.fair_queue import FairQueue
from sparse_ncp.worker.rendering.messages import LARGEST_MESSAGE, Done, Task, decode, encode, unnamed_file
from sparse_ncp.worker.rendering.request import Operations, Rendered, Rendering
from sparse_ncp.worker.store.blobs import OpenFile

# Version of the answers. Raise it when exports, plots or tables change, so that stored ones are made again.
FORMAT = 1
# Attempts per request: one more if the first renderer was killed.
TRIES = 2
# Time beyond NCP_RENDER_SECONDS after which a renderer that has not ended is abandoned.
LATE_SECONDS = 5.0
STOP_SECONDS = 5.0
# One thread each: several renderers run beside the API and the jobs.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
log = logging.getLogger("ncp.rendering")


class _Killed(Exception):
    """A renderer that ended without an answer."""


@dataclass
class _Shared:
    """An answer that is being made for one or more clients."""

    task: "asyncio.Task[OpenFile]"
    clients: int = 0


class Renderers:
    """Answer requests from stored files, or in this process if that is quick, or else in a process of its own.

    Parameters
    ----------
    configuration : Configuration
        The settings; `NCP_RENDER…` limit the processes.
    operations : Operations
        Records and store of this process, for checks and quick answers.
    """

    def __init__(self, configuration: Configuration, operations: Operations) -> None:
        self._configuration = configuration
        self._operations = operations
        self.queue = FairQueue(
            configuration.renderers,
            configuration.render_queue,
            configuration.render_queue_per_owner,
            configuration.render_seconds,
        )
        self._shared: dict[tuple[str, str], _Shared] = {}
        self._template: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._origin = f"{FORMAT} {version('sparse-ncp')} {version('matplotlib')} {_boot()}"

    @property
    def template_pid(self) -> int | None:
        """Id of the process that is forked for each request; None before the first one."""
        return None if self._template is None else self._template.pid

    @property
    def waiting_clients(self) -> int:
        """The number of clients whose answers are being made, or wait in the queue."""
        return sum(shared.clients for shared in self._shared.values())

    async def answer(self, asked: Rendering, until_gone: Callable[[], Awaitable[None]]) -> OpenFile:
        """Return the answer as an open file. The caller reads it from the start, and closes it.

        Parameters
        ----------
        asked : Rendering
            The request.
        until_gone : callable
            Returns when the client disconnects. The work then ends, unless other clients wait for the same answer.

        Raises
        ------
        RenderingRefused
            If too many requests wait, or the renderers were killed.
        RenderingTooLong, RenderingTooLarge
            If the answer needs more time or memory than is allowed.
        ConnectionAbortedError
            If the client disconnects.
        """
        found, digest, revision = await to_thread.run_sync(self._look, asked)
        if found is not None:
            return found
        name = (repr(asked), digest or revision)
        shared = self._shared.get(name)
        if shared is None:
            shared = self._shared[name] = _Shared(asyncio.create_task(self._make(asked, digest)))
            shared.task.add_done_callback(lambda task: self._forget(name, task))
        shared.clients += 1
        gone = asyncio.ensure_future(until_gone())
        try:
            await asyncio.wait({shared.task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not shared.task.done():
                gone.result()
                raise ConnectionAbortedError("the client has disconnected")
            opened = shared.task.result()
            return opened._replace(file=os.fdopen(os.dup(opened.file.fileno()), "rb"))
        finally:
            gone.cancel()
            shared.clients -= 1
            if not shared.clients:
                if self._shared.get(name) is shared:
                    del self._shared[name]
                shared.task.cancel()
                _close_result(shared.task)

    async def close(self) -> None:
        """End all renderers and their template."""
        tasks = [shared.task for shared in self._shared.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._control is not None:
            self._control.close()
        if self._template is not None:
            await to_thread.run_sync(stop, self._template, STOP_SECONDS)

    def _look(self, asked: Rendering) -> tuple[OpenFile | None, str | None, str]:
        """Return a stored or quick answer, the digest under which it is stored, and the revision of the record."""
        look = asked.look(self._operations)
        if look.ready is not None:
            return look.ready, None, look.revision
        if look.is_light:
            with suppress(FactorsNeeded):
                made = asked.make(self._operations)
                if isinstance(made, Rendered):
                    made = unnamed_file(made.content)._replace(iteration=made.iteration)
                return made, None, look.revision
        if look.inputs is None or not self._configuration.render_cache_bytes:
            return None, None, look.revision
        digest = sha256(f"{self._origin} {asked!r} {look.inputs}".encode()).hexdigest()
        return self._operations.store.rendered.find(asked.id, digest), digest, look.revision

    async def _make(self, asked: Rendering, digest: str | None) -> OpenFile:
        async with self.queue.place(asked.owner):
            for _ in range(TRIES):
                try:
                    return await self._send(asked, digest)
                except _Killed as error:
                    log.warning("%r: %s", asked, error)
            raise RenderingRefused("the process that was making this was killed", self.queue.expected_wait())

    async def _send(self, asked: Rendering, digest: str | None) -> OpenFile:
        """Send a request to a new renderer and wait for its answer; it ends if this is cancelled."""
        loop, started = asyncio.get_running_loop(), time.monotonic()
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            seconds = self._configuration.render_seconds
            try:
                with theirs:
                    socket.send_fds(self._connected_template(), [b"."], [theirs.fileno()])
                async with asyncio.timeout(seconds + LATE_SECONDS):
                    await loop.sock_sendall(ours, encode(Task(asked, digest, log_context().request_id)))
                    answer, file = await _receive(ours)
            except (TimeoutError, OSError, _Killed) as error:
                if time.monotonic() - started >= seconds:
                    raise RenderingTooLong(seconds) from error
                raise _Killed("a renderer was killed") from error
        if isinstance(answer, Done):
            if file is None:
                raise _Killed("a renderer has sent no file")
            return OpenFile(os.fdopen(file, "rb"), answer.sha256, answer.nbytes, answer.iteration)
        raise answer.exception()

    def _connected_template(self) -> socket.socket:
        """Return the connection to the template, which is started at the first request and after it has died."""
        if self._control is not None and self._template is not None:
            try:
                with suppress(ConnectionResetError):
                    self._control.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:  # it runs, and sends nothing
                return self._control
            self._control.close()
            self._template.kill()
            self._template.wait()
        self._control, theirs = socket.socketpair()
        # -P: never import a file of the same name from the current folder.
        command = [sys.executable, "-P", "-m", "sparse_ncp.worker.rendering.renderer"]
        with theirs:
            # No function runs between fork and exec, which would stop all clients while memory is marked for copying.
            self._template = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno()), "--parent", str(os.getpid())],
                env={**os.environ, **self._configuration.environment(), **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        return self._control

    def _forget(self, name: tuple[str, str], task: "asyncio.Task[OpenFile]") -> None:
        if name in self._shared and self._shared[name].task is task:
            del self._shared[name]
        if not task.cancelled():
            task.exception()  # its clients have received it, or have disconnected


async def _receive(connection: socket.socket) -> tuple[Any, int | None]:
    """Return the answer of a renderer, and the descriptor of the file beside it."""
    loop = asyncio.get_running_loop()
    received, files = b"", list[int]()
    try:
        while (answer := decode(received)) is None:
            readable = asyncio.Event()
            loop.add_reader(connection, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(connection)
            part, descriptors, _, _ = socket.recv_fds(connection, LARGEST_MESSAGE, 1)
            files += descriptors
            if not part:
                raise _Killed("a renderer ended without an answer")
            received += part
    except BaseException:
        for file in files:
            os.close(file)
        raise
    return answer, files[0] if files else None


def _close_result(task: "asyncio.Task[OpenFile]") -> None:
    """Close the file of an answer that all its clients have copied."""
    if task.done() and not task.cancelled() and task.exception() is None:
        task.result().file.close()


def _boot() -> str:
    """Return a text that changes when the machine starts: unflushed files may have been lost before that."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.exists() else str(time.time() - time.monotonic())[:8]
