"""The API process: uvicorn, which ends event streams before it waits for connections to close."""

import gc
import logging
import signal
import socket

import uvicorn
from fastapi import FastAPI
from uvicorn.middleware.proxy_headers import _TrustedHosts

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.app.auth.hosts import is_loopback
from sparse_ncp.app.main import create_app
from sparse_ncp.app.server.bind import bind_socket
from sparse_ncp.app.server.errors import NotReady
from sparse_ncp.app.server.http.connection import Connection
from sparse_ncp.app.server.http.connection_limits import ConnectionLimits, raise_file_limit
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.logs import configure_logging
from sparse_ncp.worker.processes import wait_for_start

# A request makes hundreds of objects and few cycles: with the default of 700, a tenth of its time was collection.
YOUNG_OBJECTS = 10_000
log = logging.getLogger("ncp.server")


class Server(uvicorn.Server):
    """uvicorn's server. Its shutdown closes event streams first, which would otherwise last as long as their jobs."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.broadcaster.close()
        await super().shutdown(sockets)


def run_api(configuration: Configuration, fd: int | None = None, start_fd: int | None = None) -> None:
    """Serve until a signal arrives. The launcher passes a listening socket, and a descriptor that signals Redis."""
    configure_logging(configuration)
    listener = bind_socket(configuration.host, configuration.port) if fd is None else socket.socket(fileno=fd)
    app = create_app(configuration)
    config = uvicorn_config(app, configuration, raise_file_limit())
    if start_fd is not None:
        wait_for_start(start_fd)
    gc.freeze()  # the modules stay loaded: collecting garbage among them would stop every client for 0.1 s
    gc.set_threshold(YOUNG_OBJECTS)
    for damage in ApiKeys(configuration.data).damaged():
        log.warning("%s", damage)
    log.info("listening on %s port %d", *listener.getsockname()[:2])
    with listener:
        server = Server(config, app)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, server.handle_exit)  # uvicorn's own, before it runs and when it raises them again
        server.run([listener])
    if not server.started:
        raise NotReady("the API did not start; see its messages above")


def uvicorn_config(app: FastAPI, configuration: Configuration, files: int) -> uvicorn.Config:
    """Return uvicorn's settings for a process that may open `files` files; middleware/request_id.py logs requests."""

    class LimitedConnection(Connection):
        slow_seconds = configuration.slow_seconds
        too_slow = staticmethod(app.state.metrics.too_slow)

    config = uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=configuration.drain_seconds,
        server_header=False,
        forwarded_allow_ips=configuration.proxy_networks,  # if not given, uvicorn believes everyone on this machine
    )
    trusted = _TrustedHosts(configuration.proxy_networks)

    def is_proxy(address: str | None) -> bool:
        """Return whether an address may speak for many callers. On this machine that needs no trust."""
        return address in trusted or is_loopback(address or "")

    LimitedConnection.limits = ConnectionLimits.from_configuration(
        configuration, files, is_proxy, app.state.metrics.crowded
    )
    return config
