"""A second machine, as far as the network goes: a namespace with one cable, which can be pulled out."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from sparse_ncp.worker.processes import start, stop
from tests.support.stack import wait_for

PORT = 6379


class OtherMachine:
    """`command` are the words that run a program over there; `address` is where it finds this machine."""

    def __init__(self) -> None:
        self._holder = start(["unshare", "--net", "sleep", "infinity"])  # the namespace lives as long as it does
        pid = self._holder.pid
        wait_for(lambda: os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"), what="the namespace")
        # A network of two addresses, of those that are never routed.
        ours, block = os.getpid() % 200, os.getpid() // 200 % 200
        self.address, theirs = f"10.{50 + ours}.{block}.1", f"10.{50 + ours}.{block}.2"
        self.command = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        self._cable = f"ncp{pid}"
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "cable", "netns", str(pid))
        _run("ip", "address", "add", f"{self.address}/30", "dev", self._cable)
        _run("ip", "link", "set", self._cable, "up")
        for arguments in (f"address add {theirs}/30 dev cable", "link set cable up", "link set lo up"):
            _run(*self.command, "ip", *arguments.split())

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Drop all packets in both directions, silently."""
        _run("ip", "link", "set", self._cable, "down")
        try:
            yield
        finally:
            _run("ip", "link", "set", self._cable, "up")

    def end(self) -> None:
        stop(self._holder, 5)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@cache
def has_namespaces() -> bool:
    """Whether this machine lets us make one: tried once."""
    try:
        OtherMachine().end()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
