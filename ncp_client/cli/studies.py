"""Commands about studies: study, studies."""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from ncp_client.cli.exit_codes import ExitCode
from ncp_client.cli.jobs import Limit, Source, tensor_of
from ncp_client.cli.options import Json, Key, Url, with_options
from ncp_client.cli.output import print_json, print_studies, print_study
from ncp_client.client import Client
from ncp_client.fields import StudyFields
from ncp_client.http.errors import JobFailed, Refused
from ncp_client.study import PICTURES, PLOTS, TABLES, Study

Kind = Annotated[str, typer.Argument(metavar="KIND", help="compare, choose or stability")]
Watch = Annotated[bool, typer.Option("--watch", help="show progress until the study ends, then its table or advice")]
Table = Annotated[
    Path | None,
    typer.Option("--table", help="write the table to this file when the study has ended: .csv, .tex or .json"),
]
Plots = Annotated[Path | None, typer.Option("--plots", help="write all plots to this folder when the study has ended")]
PlotFormat = Annotated[str, typer.Option("--plot-format", help="format of the plots: svg, png or pdf")]


@with_options(StudyFields)
def study(
    kind: Kind,
    source: Source,
    watch: Watch = False,
    table: Table = None,
    plots: Plots = None,
    plot_format: PlotFormat = "svg",
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
    fields: Any = None,
) -> None:
    """Queue a study: many runs on one tensor."""
    _check_outputs(table, plots, plot_format)
    with Client(url, key) as client:
        made = client.study(tensor_of(client, source, fields.get("name")), kind, **fields)
        if not (watch or table or plots):
            print_json(made.record) if as_json else print(made.id)
            return
        _follow(made, as_json and watch, quiet=not watch)
        if table is not None and made.kind == "compare":
            made.save_table(table)
        if plots is not None:
            _save_plots(made, plots, plot_format)
        print_json(made.record) if as_json else print_study(made)
        if made.state != "succeeded":
            raise JobFailed(made.record)


def _check_outputs(table: Path | None, plots: Path | None, plot_format: str) -> None:
    """Fail now rather than after hours of computing."""
    if table is not None and table.suffix.removeprefix(".") not in TABLES:
        raise typer.BadParameter("--table must end in .csv, .tex or .json")
    if plot_format not in PICTURES:
        raise typer.BadParameter(f"--plot-format must be one of {', '.join(PICTURES)}")
    for path in (table and table.absolute().parent, plots and plots.absolute().parent):
        if path is not None and not path.is_dir():
            raise typer.BadParameter(f"there is no folder {path}")


def _follow(made: Study, as_json: bool, quiet: bool) -> None:
    from ncp_client.progress import watch_study

    try:
        if as_json:
            for step in made.watch():
                print(json.dumps(step.content), flush=True)
        elif quiet:
            made.wait()
        else:
            watch_study(made)
    except KeyboardInterrupt:
        print(f"ncp: study {made.id} continues on the server; ncp cancel {made.id} stops it", file=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _save_plots(made: Study, folder: Path, format: str) -> None:
    """Save the plots that this kind of study has."""
    folder.mkdir(exist_ok=True)
    for name in PLOTS:
        try:
            made.plot(name, folder / f"{name}.{format}")
        except Refused as error:
            if error.status not in (404, 409):  # of another kind of study, or nothing to plot yet
                raise


def list_studies(limit: Limit = 50, as_json: Json = False, url: Url = None, key: Key = None) -> None:
    """List your studies, newest first."""
    with Client(url, key) as client:
        found = list(islice(client.studies(), limit or None))
    print_json([one.record for one in found]) if as_json else print_studies(found)
