"""The template of renderers: a process of one thread with everything loaded, which is forked for each request.

The API starts it and sends it one end of a connection for each request. A fork serves one request and ends, so neither
its memory nor a fault reaches the next one. Both end with the API.
"""

import argparse
import importlib
import logging
import os
import signal
import socket
import threading
from contextlib import suppress

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import NotFound, RenderingTooLarge, StoreFull, StoreUnavailable
from sparse_ncp.worker.logs import LogContext, bind_process_context, configure_logging
from sparse_ncp.worker.processes import die_with_parent, limit_memory, no_garbage_collection
from sparse_ncp.worker.rendering.messages import Done, Failed, Task, encode, receive, unnamed_file
from sparse_ncp.worker.rendering.request import Operations, Rendered
from sparse_ncp.worker.store.blobs import OpenFile

# The loop of the API and the processes of jobs go first.
NICENESS = 10
# Killed before jobs (500) if the machine runs out of memory: an answer is made again within seconds.
OOM_SCORE = 800
# An answer up to this size may be in memory until it is sent, if the disk has no room.
MEMORY_BYTES = 8 << 20
# Needed for plots and .mat files, and loaded once by the template: half a second that no renderer needs to spend.
PLOT_MODULES = (
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "scipy.io",
    "sparse_ncp.solvers.studies.plots",
)
log = logging.getLogger("ncp.rendering")


def main(configuration: Configuration, control: socket.socket, parent: int) -> None:
    """Fork a renderer for every connection that arrives, until the API, the parent, closes its end or dies."""
    die_with_parent(parent)
    configure_logging(configuration)
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets renderers that have ended
    has_plots, template = False, os.getpid()
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        if os.fork() == 0:
            control.close()
            _renderer_main(configuration, socket.socket(fileno=descriptors[0]), template)
        os.close(descriptors[0])
        if not has_plots:  # while the first request is served, which need not wait for it
            with no_garbage_collection():
                for module in PLOT_MODULES:
                    importlib.import_module(module)
            has_plots = True


def _renderer_main(configuration: Configuration, connection: socket.socket, parent: int) -> None:
    """Serve one request and exit, without running any code of the template afterwards."""
    code = 1
    try:
        die_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        task = receive(connection)
        if isinstance(task, Task):
            _serve(task, configuration, connection)
        code = 0
    except BrokenPipeError:  # the client is gone
        code = 0
    except BaseException:
        log.exception("a renderer failed")
    finally:
        os._exit(code)


def _serve(task: Task, configuration: Configuration, connection: socket.socket) -> None:
    bind_process_context(LogContext(task.request_id, task.asked.owner))
    # The default action ends the process, also while it computes without returning to Python.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, configuration.render_seconds)
    answered = threading.Event()
    threading.Thread(target=_end_with_connection, args=(connection, answered), daemon=True).start()
    limit_memory(configuration.render_memory_bytes, OOM_SCORE)
    operations = Operations.of(configuration)
    answer: Done | Failed
    try:
        opened = make_answer(task, operations, configuration)
        answer, descriptors = Done(opened.sha256, opened.nbytes, opened.iteration), [opened.file.fileno()]
    except MemoryError:
        answer, descriptors = Failed.of(RenderingTooLarge(configuration.render_memory_bytes)), []
    except Exception as error:
        answer, descriptors = Failed.of(error), []
        if not type(error).__module__.startswith("sparse_ncp."):
            log.exception("%r failed", task.asked)
    answered.set()
    socket.send_fds(connection, [encode(answer)], descriptors)
    if task.digest is not None:
        with suppress(StoreFull, StoreUnavailable):
            operations.store.rendered.evict(configuration.render_cache_bytes, configuration.min_free_bytes)


def make_answer(task: Task, operations: Operations, configuration: Configuration) -> OpenFile:
    """Make the answer as a file: kept for the next request where that is useful, else without a name.

    Raises
    ------
    NotFound
        The record was deleted meanwhile; nothing is kept of it.
    """
    made: Rendered | OpenFile = task.asked.make(operations)
    if not isinstance(made, Rendered):
        return made
    content, iteration = made
    if task.digest is not None and len(content) <= configuration.render_cache_bytes:
        try:
            opened = operations.store.rendered.save(task.asked.id, task.digest, content, iteration)
            try:
                task.asked.look(operations)  # a deletion removes what it finds, which may be before the answer is kept
            except NotFound:
                opened.file.close()
                operations.store.rendered.discard(task.asked.id)
                raise
            return opened
        except (StoreFull, StoreUnavailable, FileNotFoundError) as error:
            log.warning("an answer is not kept for the next request: %s", error)
    if len(content) <= MEMORY_BYTES:
        return unnamed_file(content)._replace(iteration=iteration)
    return operations.store.scratch(content, iteration)


def _end_with_connection(connection: socket.socket, answered: threading.Event) -> None:
    """End the process when the API closes the connection before it has an answer: no client waits any more."""
    with suppress(OSError):
        connection.recv(1)
    if not answered.is_set():
        os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True, help="connected socket on which requests arrive")
    parser.add_argument("--parent", type=int, required=True, help="process with which this one ends")
    given = parser.parse_args()
    main(Configuration(), socket.socket(fileno=given.fd), given.parent)
