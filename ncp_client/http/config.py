"""Where the server is: arguments, then NCP_URL and NCP_KEY, then the configuration file, then this machine."""

import json
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ncp_client.http.errors import NcpError

LOCAL = "http://127.0.0.1:8000"
GROUP_AND_OTHERS = 0o077


class ConfigError(NcpError):
    """An address or the configuration file cannot be used."""


class Address(NamedTuple):
    """A server, and the key it is called with."""

    url: str
    key: str | None


def config_path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "ncp" / "config.toml"


def find_server(url: str | None = None, key: str | None = None) -> Address:
    """The server to call. A stored key is sent to the server it was stored for, and to no other."""
    url, key = url or os.environ.get("NCP_URL"), key or os.environ.get("NCP_KEY")
    stored = None if url and key else read_config()
    found = check_url(url or (stored.url if stored else LOCAL))
    if key is None and stored is not None and found == stored.url:
        key = stored.key
    key = key.strip() if key else None
    if key and (not (key.isascii() and key.isprintable()) or " " in key):
        raise ConfigError("the key has characters that no key has; copy it again as ncp keys create printed it")
    return Address(found, key)


def check_url(url: str) -> str:
    """The address without a slash or `/v1` at its end."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.username is not None or parts.query or parts.fragment or any(map(str.isspace, url)):
        raise ConfigError(f"{url!r} is not the address of a server; give one such as {LOCAL}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def read_config() -> Address | None:
    path = config_path()
    if not path.exists():
        return None
    import tomllib

    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; run ncp login again") from error
    url, key = content.get("url", LOCAL), content.get("key")
    if not isinstance(url, str) or not isinstance(key, str | None):
        raise ConfigError(f"{path}: url and key must be text; run ncp login again")
    if key is not None and mode & GROUP_AND_OTHERS:
        raise ConfigError(f"{path} holds a key that others on this machine can read; run chmod 600 {path}")
    return Address(check_url(url), key)


def write_config(address: Address) -> Path:
    """Store the address for this account alone; the file is replaced whole."""
    path = config_path()
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in address._asdict().items() if value is not None]
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.writelines(lines)
    aside.replace(path)
    return path
