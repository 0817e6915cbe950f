"""The typer application with all commands, and the messages of its failures."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ncp_client.cli import jobs, studies, tensors
from ncp_client.cli.demo import demo
from ncp_client.cli.exit_codes import ExitCode
from ncp_client.cli.login import login
from ncp_client.cli.names import CLIENT_COMMANDS, plugin_commands
from ncp_client.http.errors import JobFailed, NcpError, ServerUnavailable

COMMANDS: Mapping[str, Callable[..., None]] = {
    "upload": tensors.upload,
    "submit": jobs.submit,
    "watch": jobs.watch,
    "jobs": jobs.list_jobs,
    "study": studies.study,
    "studies": studies.list_studies,
    "show": jobs.show,
    "cancel": jobs.cancel,
    "delete": jobs.delete,
    "download": jobs.download,
    "tensors": tensors.list_tensors,
    "methods": jobs.methods,
    "login": login,
    "synth": tensors.synth,
    "plot": jobs.plot,
    "demo": demo,
}
# \b keeps the help from joining the lines.
EXIT_CODES = "\b\nExit codes:\n" + "\n".join(f"  {code:<4}{code.description}" for code in ExitCode)


class Commands(TyperGroup):
    """The client's own commands, followed by those of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*CLIENT_COMMANDS, *sorted(plugin_commands())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in CLIENT_COMMANDS or cmd_name not in plugin_commands():
            return super().get_command(ctx, cmd_name)
        group: Any = typer.main.get_command(plugin_commands()[cmd_name].load().app)
        return group.get_command(ctx, cmd_name)


def print_versions(requested: bool) -> None:
    """Print the versions of the client and, where it is installed, of the server, then exit."""
    if not requested:
        return
    from importlib.metadata import PackageNotFoundError, version  # slow to load

    for distribution in ("ncp-client", "sparse-ncp"):
        with suppress(PackageNotFoundError):
            print(distribution, version(distribution))
    raise typer.Exit()


def shared_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_versions, is_eager=True, help="Show the installed versions and exit."),
    ] = False,
) -> None:
    """Define the options of `ncp` itself, which are not those of a command."""


def application(names: Sequence[str]) -> typer.Typer:
    """Return an application with these of the client's commands.

    Others are left out because typer builds a validator for every option, which takes a tenth of a second for all.
    """
    app = typer.Typer(
        cls=Commands,
        help="Decompose tensors on a sparse-ncp server, or run a server where it is installed.",
        epilog=EXIT_CODES,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,  # plain text; and rich takes longer to load than all the rest
        pretty_exceptions_enable=False,
    )
    app.callback()(shared_options)  # also keeps a single command a group
    for name in names:
        app.command(name)(COMMANDS[name])
    return app


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals that cannot show all characters
    app = application(arguments[:1] if arguments and arguments[0] in CLIENT_COMMANDS else CLIENT_COMMANDS)
    try:
        code: int = app(arguments, prog_name="ncp", standalone_mode=False) or 0
        sys.stdout.flush()  # at exit Python would report a closed pipe itself
        return code
    except typer.TyperException as error:
        command = getattr(error, "ctx", None)  # set for a wrong option
        hint = f" (see {command.command_path} --help)" if command else ""
        return _refuse(error.format_message() + hint, error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _refuse("interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:  # `ncp jobs | head` closes the pipe early
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else error, ExitCode.REFUSED)
    except (NcpError, TypeError, ValueError) as error:
        codes = {ServerUnavailable: ExitCode.UNAVAILABLE, JobFailed: ExitCode.FAILED}
        return _refuse(error, codes.get(type(error), ExitCode.REFUSED))


def _refuse(reason: object, exit_code: int) -> int:
    print(f"ncp: {reason}", file=sys.stderr)
    return exit_code
