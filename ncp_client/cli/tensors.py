"""Commands about tensors: upload, tensors, synth."""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from ncp_client.cli.jobs import Limit
from ncp_client.cli.options import Json, Key, Url
from ncp_client.cli.output import print_json, print_tensors
from ncp_client.client import Client

File = Annotated[str, typer.Argument(metavar="FILE", help="a .npy file, or - for standard input")]
Axes = Annotated[Path | None, typer.Option(help="a JSON file with [{name, unit, values}, …], one entry per mode")]
Name = Annotated[str | None, typer.Option(help="name of the tensor; by default that of the file")]


def upload(
    file: File, name: Name = None, axes: Axes = None, as_json: Json = False, url: Url = None, key: Key = None
) -> None:
    """Upload a tensor and print its id. Nothing is sent if the server already has it."""
    from ncp_client.progress import upload_bar

    labels = None
    if axes:
        try:
            labels = json.loads(axes.read_text())
        except ValueError as error:
            raise typer.BadParameter(f"{axes} is not JSON: {error}") from error
    with Client(url, key) as client, upload_bar() as advance:
        if file == "-":
            tensor = client.upload(sys.stdin.buffer, name, labels, advance)
        else:
            tensor = client.upload(Path(file), name or Path(file).name, labels, advance)
    print_json(tensor.record) if as_json else print(tensor.id)


def list_tensors(limit: Limit = 50, as_json: Json = False, url: Url = None, key: Key = None) -> None:
    """List your tensors, newest first."""
    with Client(url, key) as client:
        tensors = list(islice(client.tensors(), limit or None))
    print_json([tensor.record for tensor in tensors]) if as_json else print_tensors(tensors)


def synth(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the .npy file to write")],
    shape: Annotated[str, typer.Option(help="lengths of the modes")] = "60,50,40",
    rank: Annotated[int, typer.Option(min=1, help="number of components")] = 4,
    noise: Annotated[float, typer.Option(min=0, help="norm of the noise, relative to that of the signal")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, help="seed of the random numbers")] = 0,
    factors: Annotated[Path | None, typer.Option(help="write the true factors to this .npz file")] = None,
    as_json: Json = False,
) -> None:
    """Write a synthetic tensor with known components."""
    lengths = shape.replace("×", ",").replace("x", ",").split(",")
    if len(lengths) < 2 or not all(length.strip().isdecimal() and int(length) > 0 for length in lengths):
        raise typer.BadParameter(f"{shape!r} is not a shape; give two or more lengths, such as 60,50,40")
    from ncp_client.cli.synthetic import write_planted

    write_planted(file, list(map(int, lengths)), rank, noise, seed, factors)
    print_json({"path": str(file)}) if as_json else print(file)
