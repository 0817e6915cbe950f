"""The command `ncp`, to which other packages add commands of their own, such as the server's.

A package adds commands by entry points of the group `ncp.commands`. Each has the name of the command and refers to a
module with `app`, the typer application of the command, and `main(arguments)`, which runs it and returns the exit code.
"""

import sys
from collections.abc import Sequence

from ncp_client.cli.names import CLIENT_COMMANDS, plugin_commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors are printed as one line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] not in CLIENT_COMMANDS and not given[0].startswith("-") and given[0] in plugin_commands():
        code: int = plugin_commands()[given[0]].load().main(given)
        return code
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # its command line would load rich
    from ncp_client.cli.commands import run

    return run(given)


if __name__ == "__main__":
    sys.exit(main())
