"""Find the server: by arguments, NCP_URL and NCP_KEY, the configuration file, or on this machine."""

import json
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ncp_client.http.errors import NcpError

LOCAL = "http://127.0.0.1:8000"
GROUP_AND_OTHERS = 0o077


class ConfigError(NcpError):
    """The address of the server, the key or the configuration file is invalid.

    Examples
    --------
    >>> from ncp_client import Client, ConfigError
    >>> try:
    ...     Client("nonsense")
    ... except ConfigError as error:
    ...     print(error)
    'nonsense' is not the address of a server; give one such as http://127.0.0.1:8000
    """


class Address(NamedTuple):
    """Address of a server, and the key for it."""

    url: str
    key: str | None


def config_path() -> Path:
    """Return the path of the configuration file, whether it exists or not."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "ncp" / "config.toml"


def find_server(url: str | None = None, key: str | None = None) -> Address:
    """Return the server to call. A stored key is used only for the server it was stored for."""
    url, key = url or os.environ.get("NCP_URL"), key or os.environ.get("NCP_KEY")
    stored = None if url and key else read_config()
    found = check_url(url or (stored.url if stored else LOCAL))
    if key is None and stored is not None and found == stored.url:
        key = stored.key
    key = key.strip() if key else None
    if key and (not (key.isascii() and key.isprintable()) or " " in key):
        raise ConfigError(
            "the key contains characters that keys do not have; copy it again from the output of ncp keys create"
        )
    return Address(found, key)


def check_url(url: str) -> str:
    """Return an address without a trailing slash or `/v1`."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.username is not None or parts.query or parts.fragment or any(map(str.isspace, url)):
        raise ConfigError(f"{url!r} is not the address of a server; give one such as {LOCAL}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def read_config() -> Address | None:
    """Return the stored address, or None if there is none."""
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
        raise ConfigError(f"{path} contains a key and can be read by other users; run chmod 600 {path}")
    return Address(check_url(url), key)


def write_config(address: Address) -> Path:
    """Store the address in a file that only this account can read, and return its path."""
    path = config_path()
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in address._asdict().items() if value is not None]
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.writelines(lines)
    aside.replace(path)
    return path
