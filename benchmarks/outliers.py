"""How often a sample is called outlying though it is not, and how many planted ones are found.

    python -m benchmarks.outliers [--count 204] [--first 6000] [--output benchmarks/outliers.md]

Every tensor has a number, and is made from it alone. It is fitted by the recommended settings with the planted number
of components, without those of outlying samples.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from benchmarks.planted import KINDS, planted
from benchmarks.report import machine, markdown
from sparse_ncp.solvers import Settings, solve

OUTPUT = Path(__file__).with_name("outliers.md")
PLANTED = "outlying samples"


class Found(NamedTuple):
    """The samples of one tensor: how many there are, which are outlying, which are called so, and by which rule."""

    kind: str
    samples: int
    outlying: frozenset[int]
    flagged: frozenset[int]  # by the error when left out
    single: frozenset[int]  # by a component of their own


def judge(number: int) -> Found:
    """Fit a tensor, and compare the samples that are flagged with the planted ones."""
    tensor, factors, kind = planted(number)
    own = np.count_nonzero(factors[0], axis=0) == 1
    outlying = frozenset(factors[0][:, own].argmax(axis=0).tolist()) if kind == PLANTED else frozenset()
    rank = max(1, factors[0].shape[1] - (int(own.sum()) if kind == PLANTED else 0))
    result = solve(tensor, Settings.recommended(rank, missing="nan", negative="keep"), threads=1)
    samples = result.diagnostics.samples if result.diagnostics else None
    flagged = frozenset(outlier.index for outlier in samples.outliers) if samples else frozenset()
    single = frozenset(one.index for one in samples.single) if samples else frozenset()
    return Found(kind, len(tensor), outlying, flagged, single)


def row(name: str, found: Sequence[Found]) -> list[str]:
    outlying = sum(len(one.outlying) for one in found)

    def of(flags: str) -> list[str]:
        hits = sum(len(getattr(one, flags) & one.outlying) for one in found)
        false = [len(getattr(one, flags) - one.outlying) for one in found]
        return [f"{hits} of {outlying}" if outlying else "–", str(sum(false)), str(sum(map(bool, false)))]

    return [name, str(len(found)), str(sum(one.samples for one in found)), *of("flagged"), *of("single")]


def page(found: Sequence[Found], first: int, count: int) -> str:
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in found)]
    rows = [row(kind, [one for one in found if one.kind == kind]) for kind in kinds]
    clean = [one for one in found if one.kind != PLANTED]
    head = [
        "kind of noise", "tensors", "samples", "outlying, found", "false alarms", "tensors with one",
        "alone in a component, found", "others", "tensors with one",
    ]  # fmt: skip
    return (
        "# Outlying samples\n\n"
        f"By `python -m benchmarks.outliers --first {first} --count {count}` on {machine()}.\n\n"
        f"{count} tensors of `benchmarks/planted.py`, fitted with the planted number of components. In those with\n"
        "outlying samples, one or two samples have a spectrum of their own, one to three times as strong as the\n"
        "sample; its component is not counted in the number that is fitted. A sample is flagged if its squared error,\n"
        "when it is left out, is more than ten times the median. *Alone in a component*: the sample has more than\n"
        "90 % of a component's squared loadings.\n\n"
        + markdown(head, [*rows, row("all without outlying samples", clean), row("all", found)])
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=204, help="number of tensors")
    parser.add_argument("--first", type=int, default=6000, help="number of the first one")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args()
    found = [judge(number) for number in tqdm(range(asked.first, asked.first + asked.count))]
    asked.output.write_text(page(found, asked.first, asked.count))


if __name__ == "__main__":
    main()
