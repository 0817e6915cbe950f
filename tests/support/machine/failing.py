"""A data folder whose disk can be made to fail, with any error, for programs started in this environment."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.machine.compiled import SharedNumber, compile_library

SOURCE = Path(__file__).with_name("failing.c")


class FailingDisk:
    def __init__(self, folder: Path, data: Path) -> None:
        folder.mkdir()
        self._error = SharedNumber(folder / "error")
        library = compile_library(folder, SOURCE)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAILING_ERROR": str(folder / "error"),
            "FAILING_FOLDER": str(data.absolute()),
        }

    @contextmanager
    def failing(self, error: int) -> Iterator[None]:
        self._error.set(error)
        try:
            yield
        finally:
            self._error.set(0)
