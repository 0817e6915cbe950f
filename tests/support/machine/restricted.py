"""Run a command as systemd would run it under a unit: `python -m tests.support.machine.restricted UNIT COMMAND …`.

Needs root on x86-64, but no systemd that runs. What is not done: `User=` and `ProtectHome=`, since the Python of a test
may be in a home folder; and directives that take nothing away that the server needs.
"""

import ctypes
import errno
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NO_NEW_PRIVILEGES, DROP_CAPABILITY, SECCOMP, FILTER = 0x20000, 38, 24, 22, 2
NUMBERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
# Of a classic BPF program: load a word, compare, give the verdict. Offsets in what the kernel shows it of a call.
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_AT, MACHINE_AT, FIRST_ARGUMENT_AT, X86_64 = 0, 4, 16, 0xC000003E
ALLOW, KILL = 0x7FFF0000, 0x80000000
Step = tuple[int, int, int, int]
ROOT = Path(__file__).parents[3]


def settings(unit: str) -> dict[str, list[str]]:
    """Every setting of the unit, with its values in order."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


def confine_files(unit: Mapping[str, list[str]]) -> None:
    """A file system that is read-only but for the service's own folders, with few devices."""
    if LIBC.unshare(NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    _mount("--make-rprivate", "/")
    for base, kind in (("/var/lib", "StateDirectory"), ("/var/cache", "CacheDirectory")):
        _mount("-t", "tmpfs", "tmpfs", base)
        (Path(base) / unit[kind][0]).mkdir(int(unit[f"{kind}Mode"][0], 8))
    assert unit["PrivateDevices"] == ["true"]
    _mount("-t", "tmpfs", "tmpfs", "/mnt")
    for device in DEVICES:
        (Path("/mnt") / device).touch()
        _mount("--bind", f"/dev/{device}", f"/mnt/{device}")
    Path("/mnt/shm").mkdir()
    _mount("-t", "tmpfs", "tmpfs", "/mnt/shm")
    _mount("--move", "/mnt", "/dev")
    assert unit["ProtectSystem"] == ["strict"]
    _mount("-o", "remount,bind,ro", "/")
    assert unit["ProtectKernelTunables"] == ["true"]
    for path in ("/proc/sys", "/sys"):
        _mount("--bind", path, path)
        _mount("-o", "remount,bind,ro", path)
    assert unit["PrivateTmp"] == ["true"]
    project = os.open(ROOT, os.O_PATH)
    _mount("-t", "tmpfs", "tmpfs", "/tmp")
    if ROOT.is_relative_to("/tmp"):  # then what runs is hidden, too
        ROOT.mkdir(parents=True)
        _mount("--no-canonicalize", "--bind", f"/proc/{os.getpid()}/fd/{project}", ROOT)


def drop_privileges(unit: Mapping[str, list[str]]) -> None:
    assert unit["CapabilityBoundingSet"] == [""]
    assert unit["NoNewPrivileges"] == ["true"]
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        if LIBC.prctl(DROP_CAPABILITY, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    if LIBC.capset(struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6)):
        raise OSError(ctypes.get_errno(), "capset")
    if LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def allowed_calls(unit: Mapping[str, list[str]]) -> set[int]:
    """Return the numbers of the system calls in SystemCallFilter, less those of the lists after a tilde."""
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text())}
    allowed: set[str] = set()
    for value in unit["SystemCallFilter"]:
        calls = {call for name in value.removeprefix("~").split() for call in _expanded(name)}
        allowed = allowed - calls if value.startswith("~") else allowed | calls
    return {numbers[name] for name in allowed if name in numbers}


def _expanded(name: str) -> Iterator[str]:
    if not name.startswith("@"):
        yield name
        return
    reported = subprocess.run(["systemd-analyze", "syscall-filter", name], check=True, capture_output=True, text=True)
    for line in reported.stdout.splitlines()[1:]:
        if line.strip() and not line.strip().startswith("#"):
            yield from _expanded(line.strip())


def filter_calls(unit: Mapping[str, list[str]]) -> None:
    """Install systemd's filter: other system calls fail with EPERM, other address families with EAFNOSUPPORT."""
    assert unit["SystemCallErrorNumber"] == ["EPERM"]
    socket = 41
    families = [FAMILIES[name] for name in unit["RestrictAddressFamilies"][0].split()]
    steps: list[Step] = [(LOAD, 0, 0, MACHINE_AT), (JUMP_EQUAL, 1, 0, X86_64), (RETURN, 0, 0, KILL)]
    steps += [(LOAD, 0, 0, NUMBER_AT), (JUMP_EQUAL, 0, 2 + 2 * len(families), socket), (LOAD, 0, 0, FIRST_ARGUMENT_AT)]
    for family in families:
        steps += [(JUMP_EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
    steps.append((RETURN, 0, 0, 0x00050000 | errno.EAFNOSUPPORT))
    for call in sorted(allowed_calls(unit) - {socket}):
        steps += [(JUMP_EQUAL, 0, 1, call), (RETURN, 0, 0, ALLOW)]
    steps.append((RETURN, 0, 0, 0x00050000 | errno.EPERM))
    program = b"".join(struct.pack("HBBI", *step) for step in steps)
    held = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(held)))
    if LIBC.prctl(SECCOMP, FILTER, header, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def main(unit_file: str, *command: str) -> None:
    unit = settings(Path(unit_file).read_text())
    os.umask(int(unit["UMask"][0], 8))
    environment = dict(pair.split("=", 1) for pair in unit["Environment"][0].split())
    confine_files(unit)
    drop_privileges(unit)
    filter_calls(unit)
    os.execve(command[0], command, {**os.environ, **environment})


if __name__ == "__main__":
    main(*sys.argv[1:])
