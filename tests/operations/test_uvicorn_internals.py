"""The undocumented parts of uvicorn and httptools that app/server/http builds on are still there."""

import asyncio
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.middleware.proxy_headers import _TrustedHosts
from uvicorn.protocols.http import httptools_impl
from uvicorn.server import ServerState

NEEDED = {
    "protocol": (
        "client", "cycle", "flow", "headers", "loop", "parser", "scope", "timeout_keep_alive",
        "timeout_keep_alive_task", "transport",
        "_unset_keepalive_if_required", "connection_lost", "connection_made", "data_received", "eof_received",
        "on_body", "on_headers_complete", "on_message_complete", "on_response_complete", "pause_writing",
        "resume_writing", "send_400_response", "timeout_keep_alive_handler",
    ),
    "cycle": (
        "body", "disconnected", "message_event", "receive", "response_complete", "response_started",
        "waiting_for_100_continue",
    ),
    "flow": ("pause_reading", "read_paused", "resume_reading", "write_paused"),
    "config": ("forwarded_allow_ips", "timeout_graceful_shutdown"),
    "server": ("handle_exit", "shutdown", "started"),
    "parser": ("feed_data", "set_dangerous_leniencies"),
    "trusted_hosts": ("__contains__",),
}  # fmt: skip
WHERE = {
    "protocol": "uvicorn/protocols/http/httptools_impl.py, HttpToolsProtocol; used in app/server/http/connection.py",
    "cycle": "uvicorn/protocols/http/httptools_impl.py, RequestResponseCycle; used in app/server/http/connection.py "
    "and buffered_body.py",
    "flow": "uvicorn/protocols/http/flow_control.py, FlowControl; used in app/server/http/buffered_body.py",
    "config": "uvicorn/config.py, Config; used in app/server/http/api.py",
    "server": "uvicorn/server.py, Server; used in app/server/http/api.py",
    "parser": "httptools/parser/parser.pyx, HttpRequestParser; used in app/server/http/buffered_body.py",
    "trusted_hosts": "uvicorn/middleware/proxy_headers.py, _TrustedHosts; used in app/server/http/api.py",
}


class Transport(asyncio.Transport):
    """A transport that goes nowhere."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def receive_part_of_a_request() -> dict[str, Any]:
    """Return the objects that uvicorn has made once it has read the headers and a part of the body."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    config = uvicorn.Config(app, http=httptools_impl.HttpToolsProtocol, log_config=None, lifespan="off")
    config.load()
    protocol = httptools_impl.HttpToolsProtocol(config, ServerState(), {})
    protocol.connection_made(Transport())
    protocol.data_received(b"POST / HTTP/1.1\r\nHost: lab\r\nContent-Length: 5\r\n\r\nab")
    return {
        "protocol": protocol,
        "cycle": protocol.cycle,
        "body": bytes(protocol.cycle.body),
        "flow": protocol.flow,
        "config": config,
        "server": uvicorn.Server(config),
        "parser": httptools.HttpRequestParser(protocol),
        "trusted_hosts": _TrustedHosts("127.0.0.1"),
    }


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return asyncio.run(receive_part_of_a_request())


@pytest.mark.parametrize("kind", NEEDED)
def test_uvicorn_still_has_the_internals_that_the_server_needs(objects: dict[str, Any], kind: str) -> None:
    missing = [name for name in NEEDED[kind] if not hasattr(objects[kind], name)]
    assert not missing, f"uvicorn {uvicorn.__version__} or httptools has no {missing} any more. See {WHERE[kind]}."


def test_a_body_is_collected_where_the_server_looks_for_it(objects: dict[str, Any]) -> None:
    assert objects["body"] == b"ab", f"the start of a body is kept elsewhere: see {WHERE['cycle']}"


def test_status_lines_are_bytes() -> None:
    assert httptools_impl.STATUS_LINE[503].startswith(b"HTTP/1.1 503 "), "used in app/server/http/connection.py"
