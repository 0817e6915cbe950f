"""Names of all commands: this client's, and those that other packages join by entry points."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Named here so that no short command has to look for entry points, and no joined one loads the client.
CLIENT_COMMANDS = (
    "upload",
    "submit",
    "watch",
    "jobs",
    "study",
    "studies",
    "show",
    "cancel",
    "delete",
    "download",
    "tensors",
    "methods",
    "login",
    "synth",
    "plot",
    "demo",
)


@cache
def plugin_commands() -> "Mapping[str, EntryPoint]":
    """The entry points by command. Finding them takes longer than most commands do."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group="ncp.commands")}
