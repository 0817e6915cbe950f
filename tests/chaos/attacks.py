"""Attacks on a server, each at a random moment. They return False if there was nothing to attack."""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil
import redis

from sparse_ncp.worker.broker import QUEUE
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from tests.chaos.jobs import Jobs
from tests.chaos.machine import LEASE_SECONDS
from tests.chaos.server import ChaosServer
from tests.support.processes import frozen, kill, part, tree

FROZEN_REDIS_SECONDS = 1.5 * LEASE_SECONDS


class Attacks:
    def __init__(self, server: ChaosServer, jobs: Jobs, dice: random.Random) -> None:
        self.server = server
        self._jobs = jobs
        self._dice = dice

    def named(self) -> Mapping[str, tuple[int, Callable[[], bool]]]:
        """Each with its weight."""
        machine = self.server.machine
        found = {
            "job killed": (6, self.kill_job),
            "pool child killed": (2, self.kill_pool_child),
            "worker killed": (3, lambda: self._kill_part("worker")),
            "worker asked to stop": (2, self.stop_worker),
            "worker frozen": (2, self.freeze_worker),
            "job frozen": (2, self.freeze_job),
            "API killed": (3, lambda: self._kill_part("api")),
            "Redis killed": (3, lambda: self._kill_part("valkey")),
            "Redis frozen": (1, self.freeze_redis),
            "launcher killed": (1, self.kill_launcher),
            "queue deleted": (2, self.delete_queue),
            "job cancelled": (4, self._jobs.cancel),
            **(machine.attacks(self._dice) if machine else {}),
        }
        if machine and machine.disk:
            found["power cut"] = 1, self.cut_power
        return found

    def kill_job(self) -> bool:
        return self._kill_one(self._computing())

    def kill_pool_child(self) -> bool:
        return self._kill_one(self._pool())

    def stop_worker(self) -> bool:
        with suppress(psutil.NoSuchProcess):
            part(self.server.running, "worker").terminate()
        return True

    def freeze_worker(self) -> bool:
        """All of it, past its lease."""
        with suppress(psutil.NoSuchProcess):  # it was ending just then
            return self._frozen(tree(part(self.server.running, "worker").pid), 2 * LEASE_SECONDS)
        return False

    def freeze_job(self) -> bool:
        computing = self._computing()
        return bool(computing) and self._frozen([self._dice.choice(computing)], 2 * LEASE_SECONDS)

    def freeze_redis(self) -> bool:
        return self._frozen([part(self.server.running, "valkey")], FROZEN_REDIS_SECONDS)

    def kill_launcher(self) -> bool:
        self.server.kill_launcher()
        return True

    def cut_power(self) -> bool:
        self.server.cut_power()
        return True

    def delete_queue(self) -> bool:
        with suppress(redis.RedisError), connect(self.server.configuration) as client:
            return bool(client.delete(keys.BROKER + QUEUE))
        return False

    def _kill_part(self, name: str) -> bool:
        kill(part(self.server.running, name))
        return True

    def _frozen(self, processes: list[psutil.Process], seconds: float) -> bool:
        with suppress(psutil.NoSuchProcess, ProcessLookupError), frozen(processes):
            time.sleep(seconds)
            return True
        return False

    def _kill_one(self, processes: list[psutil.Process]) -> bool:
        if processes:
            kill(self._dice.choice(processes))
        return bool(processes)

    def _pool(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return part(self.server.running, "worker").children()
        return []

    def _computing(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for child in self._pool():
            with suppress(psutil.NoSuchProcess):
                found += child.children()
        return found
