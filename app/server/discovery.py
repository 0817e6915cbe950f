"""Find the server that runs on a data folder: its Redis, and whether its API answers."""

import http.client
import json
from urllib.parse import urlsplit

from sparse_ncp.app.server.embedded_redis import address_in
from sparse_ncp.app.server.errors import NoServer
from sparse_ncp.worker.config import Configuration

# A live API on this machine answers in milliseconds, also under load.
ANSWER_SECONDS = 2.0


def with_running_redis(configuration: Configuration) -> Configuration:
    """Fill in the address of Redis, if it is not configured: that of the server which runs on the data folder."""
    if configuration.redis_url is not None:
        return configuration
    try:
        found = address_in(configuration.data / "redis")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise no_server(configuration) from error
    return configuration.model_copy(update={"redis_url": found})


def no_server(configuration: Configuration) -> NoServer:
    return NoServer(
        f"no server runs on the folder {configuration.data}; start one with ncp serve, "
        "or name its folder with --data, or its Redis with --redis-url"
    )


def api_version(address: str) -> str | None:
    """Return the version of the API at this address, or None if it does not answer."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/healthz")
        return str(json.loads(connection.getresponse().read())["version"])
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None
    finally:
        connection.close()
