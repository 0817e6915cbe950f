"""Errors at the start of a server, and when it is not found."""


class StartupError(RuntimeError):
    """A port, an address, a folder or a key is missing or cannot be used."""


class RedisStartError(StartupError):
    """No Redis was found, or it does not start."""


class NotReady(StartupError):
    """The server was started, but one of its processes does not answer."""


class NoServer(StartupError):
    """No server runs on the data folder."""
