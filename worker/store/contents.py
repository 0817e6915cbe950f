"""Whether a data folder holds stored things, told without loading a store: the launcher must start fast."""

from pathlib import Path


def holds_files(root: Path) -> bool:
    """Whether there is a tensor or the folder of a job that some record must name.

    An upload whose marker is still there may have died before its record was added.
    """
    marked = {path.suffix.removeprefix(".") for path in _entries(root / "uploads")}
    if any(path.suffix == ".npy" and path.stem not in marked for path in _entries(root / "tensors")):
        return True
    return any(not path.name.startswith(".") for path in _entries(root / "jobs"))


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
