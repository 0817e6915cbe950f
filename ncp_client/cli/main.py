"""The `ncp` command: what users need, and the server's own commands where it is installed.

A package joins its commands with entry points of the group `ncp.commands`, each named as the command and leading to a
module with `app`, the typer application that has it, and `main(arguments)`, which runs it and returns the exit code.
"""

import sys
from collections.abc import Sequence

from ncp_client.cli.names import CLIENT_COMMANDS, plugin_commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. What goes wrong is one line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] not in CLIENT_COMMANDS and not given[0].startswith("-") and given[0] in plugin_commands():
        code: int = plugin_commands()[given[0]].load().main(given)
        return code
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # httpx's own command, which loads rich
    from ncp_client.cli.commands import run

    return run(given)


if __name__ == "__main__":
    sys.exit(main())
