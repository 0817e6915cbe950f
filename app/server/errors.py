"""Why a server cannot start, or was not found; each with the exit code of the command that needed it."""


class StartupError(RuntimeError):
    """A port, an address, a folder or a key is missing or cannot be used."""

    exit_code = 2


class RedisStartError(StartupError):
    """There is no Redis to start, or it does not start."""


class NotReady(StartupError):
    """The server was started, but one of its processes does not answer."""

    exit_code = 1


class NoServer(StartupError):
    """No server runs on the data folder."""

    exit_code = 1
