"""The two synthetic experiments of the paper, and one in the form of its ERP data, on a server.

    python -m benchmarks.paper third fourth exact [--repeats 5 2 1] [--max-seconds 180 1800 180] [--paper FOLDER]
    python -m benchmarks.paper erp --tensor erp.npy --paper FOLDER
    python -m benchmarks.paper third --small    # a tenth of the lengths, to see whether it works

Every run is a job of a server of its own, whose data folder is kept: asked again, it goes on where it was, and adds
repeats if more are asked for. `--paper` has the paper's tables as CSV. Writes those sections of replication.md
that were asked for, below what is written there by hand, and their pictures.
"""

import argparse
import csv
import io
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from benchmarks.report import machine, markdown
from sparse_ncp.solvers import synthetic
from sparse_ncp.solvers.studies import Run, plots, table
from sparse_ncp.solvers.studies.runs import Descent
from sparse_ncp.solvers.studies.settings import Cell
from sparse_ncp.solvers.studies.tables import Row, Spread
from sparse_ncp.worker.contract import TERMINAL
from tests.support.stack import server

PaperRows: TypeAlias = Mapping[tuple[str, float | None], Mapping[str, str]]

FOLDER = Path(__file__).parent
METHODS = ("mu", "als", "hals", "apg", "anls-as", "anls-bpp")
POLL_SECONDS = 2.0
# Of a picture in the document.
COLOURS = 128
PAGE = 500
# What a row has, what the paper's table calls it, the title, and the digits.
MEASURES = (
    ("objective", "objective", "objective", ".5g"),
    ("relative_error", "relative_error", "relative error", ".4f"),
    ("components", "nonzero_components", "components", ".1f"),
    ("sparsity", "sparsity", "sparsity", ".2f"),
    ("iterations", "iterations", "iterations", ".0f"),
    ("seconds", "seconds", "seconds", ".1f"),
)
# Of the page, what stands above is written by hand and kept; the tables below are made anew.
TABLES = "<!-- Below this line, python -m benchmarks.paper writes. -->"
# Our own setting, in the place of β: this sparsity, with everything as we recommend it.
RECOMMENDED, SPARSITY = "recommended", 0.02


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    paper: tuple[str, str]  # the file of the paper's table, and what it calls the tensor
    rank: int
    betas: tuple[float, ...]
    tolerance: float
    max_seconds: float
    mode: int  # whose sparsity and components the table has
    shape: tuple[int, ...]
    # Of the paper's tensor, from its objective and relative error at β = 0: a β means the same only at the same norm.
    norm: float
    repeats: int
    accelerate: str = "auto"

    def smaller(self) -> "Experiment":
        shape = tuple(max(4, length // 10) for length in self.shape)
        norm = self.norm * math.sqrt(math.prod(shape) / math.prod(self.shape))
        return replace(self, name=f"{self.name}-small", shape=shape, norm=norm, max_seconds=2.0)


BETAS = (0.0, 0.1, 0.5, 1.0, 2.0, 3.0)
EXPERIMENTS = {
    "third": Experiment("third", "Third-order synthetic tensor", ("table-synthetic.csv", "synthetic-3rd"), 20,
                        BETAS, 1e-8, 180.0, 1, (1000, 100, 100), 1700.0, 5),
    "fourth": Experiment("fourth", "Fourth-order synthetic tensor", ("table-synthetic.csv", "synthetic-4th"), 20,
                         BETAS, 1e-7, 1800.0, 1, (1000, 100, 100, 5), 2119.0, 2),
    "erp": Experiment("erp", "Fourth-order ERP-like tensor", ("table-erp.csv", "erp-4th"), 40,
                      (0.0, 10.0, 50.0, 100.0, 200.0, 300.0), 1e-8, 120.0, 3, (60, 38, 141, 4), 8763.0, 2),
    "exact": Experiment("exact", "Third-order synthetic tensor, exact sweeps only",
                        ("table-synthetic.csv", "synthetic-3rd"), 20,
                        (0.5,), 1e-8, 180.0, 1, (1000, 100, 100), 1700.0, 1, "none"),
}  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """One run: its place in the tables, and the body of its job."""

    cell: Cell
    repeat: int
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        weight = RECOMMENDED if self.cell.method == RECOMMENDED else f"{self.cell.beta:g}"
        return f"{self.cell.method} {weight} {self.repeat}"


def planned(experiment: Experiment) -> Iterator[Planned]:
    """List the runs repeat by repeat, so that an interrupted experiment has whole tables."""
    stop = {"tolerance": experiment.tolerance, "max_seconds": experiment.max_seconds}
    for repeat in range(experiment.repeats):
        for method in METHODS:
            for beta in experiment.betas:
                body = {"rank": experiment.rank, "method": method, "beta": beta, "seed": repeat, "stop": stop,
                        "accelerate": experiment.accelerate}  # fmt: skip
                yield Planned(Cell(rank=experiment.rank, method=method, beta=beta, sparsity=None), repeat, body)
        own = {"rank": experiment.rank, "sparsity": SPARSITY, "seed": repeat, "preset": "recommended",
               "accelerate": experiment.accelerate, "stop": {"max_seconds": experiment.max_seconds}}  # fmt: skip
        yield Planned(Cell(rank=experiment.rank, method=RECOMMENDED, beta=None, sparsity=SPARSITY), repeat, own)


def submit(lab: httpx.Client, experiment: Experiment, tensor: NDArray[Any]) -> str:
    """Submit the runs that were not submitted before, and return the id of the tensor."""
    tensor_id = _uploaded(lab, tensor, experiment.name)
    known = _jobs(lab, tensor_id)
    for plan in planned(experiment):
        if plan.name not in known:
            lab.post("/v1/jobs", json={**plan.body, "tensor_id": tensor_id, "name": plan.name}).raise_for_status()
    return tensor_id


def wait(lab: httpx.Client, experiment: Experiment, tensor_id: str) -> list[Run]:
    """Wait until the last run has ended, and return the results."""
    wanted = {plan.name: plan for plan in planned(experiment)}
    with tqdm(total=len(wanted), desc=experiment.name, unit="run") as bar:
        while True:
            jobs = {name: job for name, job in _jobs(lab, tensor_id).items() if name in wanted}
            ended = [job for job in jobs.values() if job["state"] in TERMINAL]
            bar.update(len(ended) - bar.n)
            if len(ended) == len(wanted):
                return [_outcome(lab, plan, jobs[name]) for name, plan in wanted.items()]
            time.sleep(POLL_SECONDS)


def _uploaded(lab: httpx.Client, tensor: NDArray[Any], name: str) -> str:
    """Return the id of the tensor, uploaded once."""
    known = lab.get("/v1/tensors", params={"limit": PAGE}).raise_for_status().json()["items"]
    found = next((record["id"] for record in known if record["name"] == name), None)
    if found is not None:
        return str(found)
    content = io.BytesIO()
    np.save(content, tensor, allow_pickle=False)
    answer = lab.post("/v1/tensors", params={"name": name}, content=content.getvalue())
    return str(answer.raise_for_status().json()["id"])


def _jobs(lab: httpx.Client, tensor_id: str) -> dict[str, Any]:
    """Return all jobs on the tensor by name."""
    found: dict[str, Any] = {}
    cursor: str | None = None
    while True:
        asked: dict[str, str | int] = {"tensor_id": tensor_id, "limit": PAGE, **({"cursor": cursor} if cursor else {})}
        page = lab.get("/v1/jobs", params=asked).raise_for_status().json()
        found |= {job["name"]: job for job in page["items"]}
        cursor = page["next"]
        if cursor is None:
            return found


def _outcome(lab: httpx.Client, plan: Planned, job: Mapping[str, Any]) -> Run:
    if job["result"] is None:
        return Run(plan.cell, plan.repeat, error=job["error"]["message"] if job["error"] else job["state"])
    result = job["result"]
    rows = lab.get(f"/v1/jobs/{job['id']}/history").raise_for_status().json()
    kept = [row for row in rows if row["start"] is None]
    with np.load(io.BytesIO(lab.get(f"/v1/jobs/{job['id']}/factors").raise_for_status().content)) as arrays:
        factors = tuple(arrays[f"A{mode}"] for mode in range(1, 1 + len(result["sparsity"]["per_mode"])))
    return Run(
        plan.cell,
        plan.repeat,
        result["objective"],
        result["relative_error"],
        result["seconds"],
        result["iterations"],
        result["stop_reason"],
        tuple(result["sparsity"]["per_mode"]),
        tuple(result["nonzero_components"]["per_mode"]),
        descent=Descent(tuple(row["seconds"] for row in kept), tuple(row["objective"] for row in kept)),
        factors=factors,
    )


def section(
    experiment: Experiment, runs: Sequence[Run], reference: NDArray[Any] | None, paper: Path | None, folder: Path
) -> str:
    """Return our table with the figures of the paper, and links to the plots in a folder beside the page."""
    theirs = _paper_rows(experiment, paper)
    rows = table(runs, experiment.mode, reference)
    shown = [_cells(row, theirs, runs) + ([_shown(row.psnr, ".1f")] if reference is not None else []) for row in rows]
    titles = ["method", "β", *(title for _, _, title, _ in MEASURES), "at the limit", "failed"]
    titles += ["PSNR"] if reference is not None else []
    sweeps = "each sweep over the whole tensor" if experiment.accelerate == "none" else "`accelerate` auto"
    limit = f"tolerance {experiment.tolerance:g}, at most {experiment.max_seconds:g} s a run, {sweeps}"
    pictures = "\n".join(
        f"![{words}]({folder.name}/{experiment.name}-{name}.png)"
        for name, words in (("objective", "The objective against time"), ("quality", "Box plots over the repeats"))
    )
    shape = " × ".join(map(str, experiment.shape))
    repeats = "1 repeat" if experiment.repeats == 1 else f"{experiment.repeats} repeats"
    counted = "" if reference is None else f"\n\n{_who_ends_at(reference.shape[1], rows, theirs)}"
    return (
        f"## {experiment.title}\n\n{shape}, R = {experiment.rank}; {limit}; {repeats}. "
        f"Means, ours / the paper's; sparsity and components of mode {experiment.mode}. On {machine()}.\n\n"
        f"{markdown(titles, shown)}{counted}\n\n{pictures}\n"
    )


def _who_ends_at(planted: int, rows: Sequence[Row], theirs: PaperRows) -> str:
    """Return for each method the β at which the mean number of components is the planted one."""

    def betas(method: str, components: Mapping[float | None, float]) -> str:
        return ", ".join(f"{beta:g}" for beta, k in components.items() if abs(k - planted) < 0.5) or "none"

    lines = []
    for method in METHODS:
        ours = {row.cell.beta: row.components.mean for row in rows if row.cell.method == method and row.components}
        paper = {beta: float(row["nonzero_components"]) for (name, beta), row in theirs.items() if name == method}
        lines.append(
            [method, betas(method, ours), betas(method, {beta: k for beta, k in paper.items() if beta in ours})]
        )
    return markdown(["method", f"β at which {planted} components are left, ours", "the paper's"], lines)


def _draw(experiment: Experiment, runs: Sequence[Run], reference: NDArray[Any] | None, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, figure in (
        ("objective", plots.objective([run for run in runs if run.cell.method != RECOMMENDED])),
        ("quality", plots.quality(runs, experiment.mode, reference)),
    ):
        with Image.open(io.BytesIO(plots.render(figure, "png"))) as picture:  # few colours: a quarter of the size
            small = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)  # rare colours stay, too
            small.save(folder / f"{experiment.name}-{name}.png", optimize=True)


def _cells(row: Row, theirs: PaperRows, runs: Sequence[Run]) -> list[str]:
    weight = f"sparsity {row.cell.sparsity:g}" if row.cell.sparsity is not None else f"{row.cell.beta:g}"
    paper = theirs.get((row.cell.method, row.cell.beta))
    measures = [
        _shown(getattr(row, measure), digits) + (f" / {float(paper[name]):{digits}}" if paper else "")
        for measure, name, _, digits in MEASURES
    ]
    late = sum(run.stop_reason == "max_seconds" for run in runs if run.cell == row.cell)
    return [row.cell.method, weight, *measures, f"{late} of {row.runs}", f"{row.failures}"]


def _shown(spread: Spread | None, digits: str) -> str:
    return "–" if spread is None or math.isnan(spread.mean) else f"{spread.mean:{digits}}"


def _paper_rows(experiment: Experiment, folder: Path | None) -> PaperRows:
    if folder is None:
        return {}
    file, name = experiment.paper
    with (folder / file).open() as content:
        return {(row["method"], float(row["beta"])): row for row in csv.DictReader(content) if row["tensor"] == name}


def made(experiment: Experiment, file: Path | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the tensor, and the true factor of one mode if there is one."""
    if experiment.name.startswith("erp"):
        if file is None:
            raise SystemExit("the ERP tensor is not part of this project: give its file with --tensor")
        recorded, true = np.load(file, allow_pickle=False), None
    else:
        drawn = synthetic.planted(experiment.shape)
        recorded, true = drawn.tensor, drawn.factors[experiment.mode - 1]
    return recorded * (experiment.norm / np.linalg.norm(recorded)), true


def _asked(experiment: Experiment, repeats: int | None, max_seconds: float | None) -> Experiment:
    return replace(experiment, repeats=repeats or experiment.repeats, max_seconds=max_seconds or experiment.max_seconds)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.paper", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("experiments", nargs="+", choices=EXPERIMENTS)
    parser.add_argument("--repeats", type=int, nargs="+", default=[], help="for each experiment")
    parser.add_argument(
        "--max-seconds", type=float, nargs="+", default=[], help="of a run, for each experiment; the paper's by default"
    )
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time, one thread each")
    parser.add_argument("--small", action="store_true", help="a tenth of the lengths, two seconds a run")
    parser.add_argument("--paper", type=Path, help="folder with table-synthetic.csv and table-erp.csv")
    parser.add_argument("--tensor", type=Path, help="the ERP tensor")
    parser.add_argument("--data", type=Path, default=Path("paper-runs"), help="folder of the server, kept")
    parser.add_argument("--output", type=Path, default=FOLDER / "replication.md")
    asked = parser.parse_args()
    asked.data.mkdir(exist_ok=True)
    experiments = [
        _asked(EXPERIMENTS[name].smaller() if asked.small else EXPERIMENTS[name], repeats, max_seconds)
        for name, repeats, max_seconds in zip_longest(asked.experiments, asked.repeats, asked.max_seconds)
    ]
    sections = []
    with (
        server(asked.data, "--workers", str(asked.workers), threads=1) as running,
        httpx.Client(base_url=running.address, timeout=600) as lab,
    ):
        submitted = []
        for experiment in experiments:
            tensor, reference = made(experiment, asked.tensor)
            submitted.append((experiment, submit(lab, experiment, tensor), reference))
        for experiment, tensor_id, reference in submitted:
            runs = wait(lab, experiment, tensor_id)
            pictures = asked.output.with_suffix("")
            sections.append(section(experiment, runs, reference, asked.paper, pictures))
            _draw(experiment, runs, reference, pictures)
    _write(asked.output, sections)


def _write(page: Path, sections: Sequence[str]) -> None:
    """Replace the sections with these titles, and leave the others as they are."""
    above, _, below = (page.read_text() if page.exists() else "# The paper's comparison\n\n").partition(TABLES)
    known = {part.split("\n")[0]: part.rstrip() for part in below.split("\n## ")[1:]}
    known |= {part.split("\n")[0]: part.rstrip() for part in (section.removeprefix("## ") for section in sections)}
    titles = [experiment.title for experiment in EXPERIMENTS.values()]
    ordered = sorted(known, key=lambda title: titles.index(title) if title in titles else len(titles))
    page.write_text("\n\n## ".join([f"{above}{TABLES}", *(known[title] for title in ordered)]) + "\n")


if __name__ == "__main__":
    main()
