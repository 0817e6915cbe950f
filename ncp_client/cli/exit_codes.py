"""Exit codes of the command `ncp`, shared by the client's commands and the server's."""

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """How a command ended; `ncp --help` lists the codes with their descriptions."""

    description: str

    DONE = 0, "done"
    FAILED = 1, "the job failed or was cancelled, or the server is not running"
    REFUSED = 2, "refused: an option, a setting, a key or a file"
    UNAVAILABLE = 3, "no server answers"
    INTERRUPTED = 130, "interrupted; the job continues"

    def __new__(cls, code: int, description: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.description = description
        return member
