"""Check and repair the log of the embedded Redis, its append-only files.

A power cut may leave zeros or garbage behind the last commands, which were never answered: Redis then refuses to start.
"""

import mmap
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sparse_ncp.app.server.errors import RedisStartError
from sparse_ncp.worker.store.files import atomic_write, fsync_folder, private_folder

FOLDER, MANIFEST = "appendonlydir", "appendonly.aof.manifest"
# In the folder of Redis, what was damaged, as it was found.
ASIDE = "damaged"
# Alone it is empty: a first start was cut short before there was a list.
FIRST = "appendonly.aof.1.base.rdb"
FILE = re.compile(r"appendonly\.aof\.(?P<sequence>\d+)\.(?P<kind>base|incr)\.(rdb|aof)")
LISTED = re.compile(r"file (?P<name>\S+) seq (?P<sequence>\d+) type (?P<type>[bhi]).*")
RESTORE = "or restore a backup of its folder"
# The longest line that a command has: `*` or `$` and a number.
LINE = 32
# No command of ours has a part that is longer, nor does Redis accept one.
LONGEST_PART = 1 << 29


class Damage(NamedTuple):
    """A damaged file of the log: where the damage begins, and how many commands after it would be lost."""

    file: Path
    whole_bytes: int
    bytes_behind: int
    commands_behind: int

    def __str__(self) -> str:
        lost = (
            f"{self.commands_behind} whole commands among them" if self.commands_behind else "no whole command in them"
        )
        return f"{self.file.name} is damaged at byte {self.whole_bytes}; {self.bytes_behind} bytes follow, {lost}"


# Which files there are


def check_manifest(folder: Path) -> None:
    """Raise an error if the log has lost its manifest: Redis would start a new, empty log."""
    log = folder / FOLDER
    if [path.name for path in _parts(log)] in ([], [FIRST]) or _listed(log):
        return
    raise RedisStartError(
        f"the list of the files of Redis's log is lost ({log / MANIFEST}); "
        f"ncp repair --data {folder.parent} rebuilds it, {RESTORE}"
    )


def rebuild_manifest(folder: Path) -> str | None:
    """Rebuild a lost manifest and return a message; refuse if it is unclear which files belong to the log."""
    log = folder / FOLDER
    parts = _parts(log)
    if not parts or _listed(log):
        return None
    bases, increments = ([path for path in parts if _matched(path)["kind"] == kind] for kind in ("base", "incr"))
    sequences = [int(_matched(path)["sequence"]) for path in increments]
    if len(bases) > 1 or sequences != list(range(sequences[0], sequences[0] + len(sequences)) if sequences else []):
        raise RedisStartError(f"it is unclear which files in {log} belong to the log: restore a backup of this folder")
    lines = [f"file {path.name} seq {_matched(path)['sequence']} type b\n" for path in bases]
    lines += [f"file {path.name} seq {_matched(path)['sequence']} type i\n" for path in increments]
    _put_aside(folder, log / MANIFEST)
    atomic_write(log / MANIFEST, "".join(lines).encode())
    return f"the list of the log's files was lost, and has been rebuilt from {', '.join(path.name for path in parts)}"


def _parts(log: Path) -> list[Path]:
    """Return the files of the log by kind and number, without using the manifest."""
    found = [path for path in log.iterdir() if FILE.fullmatch(path.name)] if log.is_dir() else []
    return sorted(found, key=lambda path: (_matched(path)["kind"], int(_matched(path)["sequence"])))


def _matched(path: Path) -> "re.Match[str]":
    found = FILE.fullmatch(path.name)
    assert found is not None
    return found


def _listed(log: Path) -> list[Path]:
    """Return the files that the manifest lists, in the order in which Redis reads them; none if it is damaged."""
    manifest = log / MANIFEST
    lines = manifest.read_bytes().splitlines() if manifest.is_file() else []
    entries = [LISTED.fullmatch(line.decode(errors="replace")) for line in lines if line and not line.startswith(b"#")]
    if not all(entries):
        return []
    return [log / entry["name"] for entry in entries if entry is not None and entry["type"] != "h"]


# How far it is whole


def find_damage(folder: Path) -> Damage | None:
    """Return the first place where the log is damaged, or None."""
    listed = _listed(folder / FOLDER)
    lost = [path.name for path in listed if not path.is_file()]
    if lost:
        raise RedisStartError(f"{', '.join(lost)} of the log of Redis is lost: restore a backup of {folder}")
    files = [path for path in listed if path.suffix == ".aof"]
    for place, path in enumerate(files):
        size = path.stat().st_size
        with path.open("rb") as file:
            whole, parsed = whole_bytes(file)
        if whole < size:
            behind = _count_commands(path, parsed) + sum(_count_commands(later, 0) for later in files[place + 1 :])
            return Damage(path, whole, size - whole, behind)
    return None


def whole_bytes(file: BinaryIO) -> tuple[int, int]:
    """Return the length of the complete commands and transactions, and that with an unfinished transaction."""
    whole, parsed, in_transaction = 0, 0, False
    for name, parsed in _commands(file, 0):
        in_transaction = name == b"MULTI" or (in_transaction and name != b"EXEC")
        whole = whole if in_transaction else parsed
    return whole, parsed


def _commands(file: BinaryIO, start: int) -> Iterator[tuple[bytes, int]]:
    """Yield the name and the end of each command from `start` on, up to the first incomplete one."""
    file.seek(start)
    while (name := _read_command(file)) is not None:
        yield name, file.tell()


def _read_command(file: BinaryIO) -> bytes | None:
    """Read one command in the format of Redis (`*2`, `$3`, `GET`, `$1`, `a`, one per line) and return its name."""
    line = file.readline(LINE)
    while line.startswith(b"#"):  # a note, such as the time
        line = file.readline(LINE)
    name: bytes | None = None
    for _ in range(_number(line, b"*") or 0):
        length = _number(file.readline(LINE), b"$")
        part = b"" if length is None or length > LONGEST_PART else file.read(length + 2)
        if length is None or len(part) != length + 2 or not part.endswith(b"\r\n"):
            return None
        name = part[:-2].upper() if name is None else name
    return name


def _number(line: bytes, sign: bytes) -> int | None:
    digits = line.removeprefix(sign).removesuffix(b"\r\n")
    return int(digits) if line == sign + digits + b"\r\n" and digits.isdigit() else None


def _count_commands(path: Path, start: int) -> int:
    """Count the complete commands after the damage, wherever they begin."""
    if path.stat().st_size == 0:  # which cannot be mapped
        return 0
    count, place = 0, start
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        while (place := content.find(b"*", place)) >= 0:
            ends = [end for _, end in _commands(file, place)]
            count, place = count + len(ends), ends[-1] if ends else place + 1
    return count


# What can be done


def cut_tail(folder: Path) -> str | None:
    """Cut off a tail without commands and return a message, or None if there is no such tail.

    Raises RedisStartError if commands would be lost.
    """
    damage = find_damage(folder)
    if damage is None:
        return None
    if damage.commands_behind:
        raise RedisStartError(
            f"the log of Redis, {damage}; ncp repair --data {folder.parent} keeps what precedes the damage, {RESTORE}"
        )
    return cut(folder, damage)


def cut(folder: Path, damage: Damage) -> str:
    """Cut the log off at the damage, later files included, once a copy of everything is on the disk."""
    log = folder / FOLDER
    listed = _listed(log)
    behind = listed[listed.index(damage.file) + 1 :]
    aside = _put_aside(folder, damage.file, *behind, log / MANIFEST)
    with damage.file.open("r+b") as file:
        file.truncate(damage.whole_bytes)
        os.fsync(file.fileno())
    if behind:
        dropped = {path.name.encode() for path in behind}
        lines = (log / MANIFEST).read_bytes().splitlines(keepends=True)
        atomic_write(log / MANIFEST, b"".join(line for line in lines if line.split()[1] not in dropped))
        for path in behind:
            path.unlink()
    return f"the log of Redis, {damage}; it was cut off there, and {aside} has a copy of what was"


def _put_aside(folder: Path, *paths: Path) -> Path:
    """Copy the files to a new folder and flush them. Nothing is cut without a copy."""
    aside = folder / ASIDE / time.strftime("%Y%m%d-%H%M%S")
    try:
        private_folder(aside)
        for path in filter(Path.exists, paths):
            with path.open("rb") as source, (aside / path.name).open("wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
        fsync_folder(aside)
    except OSError as error:
        raise RedisStartError(f"cannot copy the damaged log to {aside}: {error}; free some space first") from error
    return aside
