"""`ncp demo`: decompose a sample on a private server, and save the factors and a plot."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ncp_client.cli.output import print_result
from ncp_client.client import Client
from ncp_client.http.errors import NcpError

SHAPE, RANK, NOISE, SEED = (9, 71, 60, 42), 6, 0.1, 0
MODES = ("channel", "frequency", "time", "subject")


def demo(
    folder: Annotated[Path, typer.Option("--output", "-o", help="folder for factors.npz and components.png")] = Path(),
) -> None:
    """Decompose a sample on a private server. Saves the factors and a plot of them."""
    from ncp_client.cli.synthetic import write_planted
    from ncp_client.progress import upload_bar, watch_live

    folder.mkdir(parents=True, exist_ok=True)
    print("starting   a server; the first start compiles the solvers, which can take minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="ncp-demo-") as private, _server(Path(private)) as url:
        sample = Path(private) / "sample.npy"
        write_planted(sample, SHAPE, RANK, NOISE, SEED)
        print(f"server     {url}, on its own data folder")
        print(f"sample     {' × '.join(map(str, SHAPE))} ({', '.join(MODES)}), {RANK} components, {NOISE:.0%} noise")
        with Client(url) as client:
            with upload_bar() as advance:
                tensor = client.upload(sample, "sample", MODES, advance)
            job = watch_live(client.submit(tensor, 2 * RANK, sparsity=0.02))
            print(f"allowed    {2 * RANK} components; sparsity 0.02 removes those that the data do not support\n")
            print_result(job)
            job.download(folder / "factors.npz")
            job.result.plot(folder / "components.png")
    print(f"\nsaved      {folder / 'factors.npz'}, {folder / 'components.png'}")


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Run `ncp serve` on a free port, without the settings of this machine, and give its address."""
    log = folder / "log"
    command = [sys.executable, "-m", "ncp_client.cli.main", "serve", "--host", "127.0.0.1", "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NCP_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--data", str(folder / "data")], stdout=output, stderr=output, env=environment
        )
    try:
        while True:
            ended, text = process.poll() is not None, log.read_text(errors="replace")
            if found := re.search(r"ready at (http://\S+)", text):
                break
            if ended:
                raise NcpError(f"no server started here: {text.strip().rpartition(chr(10))[2]}")
            time.sleep(0.05)
        yield found[1]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
