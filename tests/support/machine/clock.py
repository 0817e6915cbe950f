"""A Redis whose wall clock can be set."""

from pathlib import Path

from sparse_ncp.app.server.embedded_redis import find_server
from sparse_ncp.worker.config import Configuration
from tests.support.machine.compiled import SharedNumber, compile_library, write_wrapper

SOURCE = Path(__file__).with_name("clock.c")


class RedisClock:
    """`redis_server` is the binary to configure; `set` moves its clock, while it runs or between two runs."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir()
        self._offset = SharedNumber(folder / "offset")
        library = compile_library(folder, SOURCE)
        self.redis_server = folder / "redis-server"
        environment = {"LD_PRELOAD": f"{library}:$LD_PRELOAD", "CLOCK_OFFSET": str(folder / "offset")}
        write_wrapper(self.redis_server, environment, str(find_server(Configuration())), arguments)

    def set(self, seconds: float) -> None:
        """So many seconds ahead of the machine's clock, or behind it."""
        self._offset.set(int(seconds))
