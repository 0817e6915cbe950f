"""Why a server cannot start, or was not found."""


class StartupError(RuntimeError):
    """A port, an address, a folder or a key is missing or cannot be used."""


class RedisStartError(StartupError):
    """There is no Redis to start, or it does not start."""


class NotReady(StartupError):
    """The server was started, but one of its processes does not answer."""


class NoServer(StartupError):
    """No server runs on the data folder."""
