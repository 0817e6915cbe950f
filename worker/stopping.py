"""A word that every child hears: the worker is about to stop."""

import os
import select


class Stopping:
    """A pipe that is closed at one end. Forked children inherit the other: once readable, it stays so for all."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def set(self) -> None:
        """Safe in a signal handler, and to say twice."""
        os.write(self._writer, b".")

    def is_set(self) -> bool:
        return bool(select.select([self.reader], [], [], 0)[0])
