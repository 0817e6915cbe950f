"""Looking into a running `ncp serve`."""

import psutil

from tests.stack import Server, wait_for
from worker.configuration import Configuration


def configuration_of(running: Server) -> Configuration:
    return Configuration(data=running.data, redis_url=f"unix://{running.data.absolute()}/redis/redis.sock")


def part(running: Server, name: str) -> psutil.Process:
    """The launcher's child that is this part."""

    def look() -> psutil.Process | None:
        try:
            children = psutil.Process(running.process.pid).children()
            return next((child for child in children if name in [*child.cmdline(), child.name()[:6]]), None)
        except psutil.NoSuchProcess:
            return None  # a child that has just died, a zombie among them

    return wait_for(look, what=name)
