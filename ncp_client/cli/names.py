"""Names of all commands: the client's, and those that other packages add by entry points."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# A list, so that the client's commands do not search for entry points, and other commands do not load the client.
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
    """Return the entry points by command. Finding them takes longer than most commands."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group="ncp.commands")}
