"""uvicorn, told to let event streams end first: they would hold up its shutdown."""

import gc
import logging
import signal
import socket
import sys

import uvicorn
from fastapi import FastAPI

from app.claims import Taken, take_port
from app.connection import Connection
from app.main import create_app
from worker.configuration import Configuration
from worker.logs import set_up

FAILED, REFUSED = 1, 2
# Downloads and uploads may take this long to finish once the server is asked to stop.
GRACE_SECONDS = 10
log = logging.getLogger("ncp.server")


class Server(uvicorn.Server):
    """Closes the event streams before it waits for connections."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.live.close()
        await super().shutdown(sockets)


def run_api(configuration: Configuration, fd: int | None = None) -> int:
    """Serve until a signal. `fd` is a listening socket that the launcher has bound."""
    set_up(configuration)
    try:
        listener = take_port(configuration.host, configuration.port) if fd is None else socket.socket(fileno=fd)
    except Taken as refusal:
        print(f"ncp: {refusal}", file=sys.stderr)
        return REFUSED
    app = create_app(configuration)
    config = uvicorn_config(app, configuration)
    gc.freeze()  # what is loaded stays: looking through all of it again and again stops every client for 0.1 s
    log.info("listening on %s port %d", *listener.getsockname()[:2])
    with listener:
        server = Server(config, app)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, server.handle_exit)  # uvicorn's own, before it runs and when it raises them again
        server.run([listener])
    return 0 if server.started else FAILED


def uvicorn_config(app: FastAPI, configuration: Configuration) -> uvicorn.Config:
    """Connections are watched by app.connection; app.request_id writes its own line per answer."""

    class Watched(Connection):
        slow_seconds = configuration.slow_seconds
        too_slow = staticmethod(app.state.numbers.too_slow)

    return uvicorn.Config(
        app,
        http=Watched,
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
    )
