"""`ncp login`: ask for address and key, test them and store them."""

from typing import Annotated

import typer

from ncp_client.cli.options import Json
from ncp_client.cli.output import print_json
from ncp_client.client import Client
from ncp_client.http.config import Address, find_server, write_config


def login(
    url: Annotated[
        str | None, typer.Option("--url", help="address of the server; by default you are asked for it")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="API key; by default you are asked for it, and it is not shown")
    ] = None,
    as_json: Json = False,
) -> None:
    """Store the address of a server and your key for it. Only this account can read them."""
    if url is None:
        url = typer.prompt("Address of the server", default=find_server().url)
    if key is None:
        key = typer.prompt("Key (empty if the server needs none)", default="", hide_input=True, show_default=False)
    with Client(url, key) as client:
        owner = client.usage()["owner"]
        path = write_config(Address(client.url, key or None))
    if as_json:
        print_json({"url": client.url, "owner": owner, "path": str(path)})
    else:
        print(f"{client.url} knows you as {owner}; stored in {path}")
