"""uvicorn, told to let event streams end first: they would hold up its shutdown."""

import logging.config
import signal
import socket
import sys

import uvicorn
from fastapi import FastAPI

from app.claims import Taken, take_port
from app.main import create_app
from worker.configuration import Configuration

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
    logging.config.dictConfig(log_setup(configuration.log_level))
    try:
        listener = take_port(configuration.host, configuration.port) if fd is None else socket.socket(fileno=fd)
    except Taken as refusal:
        print(f"ncp: {refusal}", file=sys.stderr)
        return REFUSED
    app = create_app(configuration)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # app.request_id writes its own line, with the id
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
    )
    log.info("listening on %s port %d", *listener.getsockname()[:2])
    with listener:
        server = Server(config, app)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, server.handle_exit)  # uvicorn's own, before it runs and when it raises them again
        server.run([listener])
    return 0 if server.started else FAILED


def log_setup(level: str) -> dict[str, object]:
    """One line per record, each with the request id."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"request_id": {"()": "app.request_id.AddRequestId"}},
        "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["request_id"]},
        },
        "root": {"level": level.upper(), "handlers": ["stderr"]},
    }
