"""Tables of measurements in Markdown."""

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.acceleration import BETA, Gain
from benchmarks.convergence import Approach
from benchmarks.sweeps import FOLLOWING, SETTLE_SECONDS, Sweeps
from sparse_ncp.solvers.tensor.threads import available_cores

# Tuned by hand, two threads of a machine with AVX-512; milliseconds per sweep, then seconds to 1 % of the best error.
PLANC = {
    "HALS": {"W3": (16, 2.0), "W4": (72, 10.2), "E3": (7.6, 0.67), "E4": (3.4, 0.11)},
    "ANLS-BPP": {"W3": (23, 0.66), "W4": (78, 1.7), "E3": (72, 2.3), "E4": (5.0, 0.13)},
}
NOTE = "PLANC's figures are not measured here: two threads of a machine with AVX-512, tensors of the same kind."


def title() -> str:
    return f"# Benchmark\n\nBy `make bench` on {machine()}."


def machine() -> str:
    packages = ("numpy", "scipy", "numba", "tensorly")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = names[0].split(":")[1].strip() if names else platform.processor()
    return f"{processor}, {available_cores()} threads, Python {platform.python_version()}, {versions}"


def sweep_table(results: Mapping[str, Sweeps]) -> str:
    disturbed = ", ".join(f"{name} {r.disturbed} of {r.rounds}" for name, r in results.items())
    medians = _with_ratios({name: r.median for name, r in results.items()})
    medians += [[f"PLANC {name} (note)", *(f"{row[tensor][0]:g}" for tensor in results)] for name, row in PLANC.items()]
    first = _with_ratios({name: r.first for name, r in results.items()})
    fastest = _with_ratios({name: r.fastest for name, r in results.items()})
    return (
        "## Milliseconds per sweep\n\n"
        f"Medians of interleaved rounds of {FOLLOWING} sweeps that follow each other (tensorly: one); in brackets the\n"
        "ratio to *two products*: the cheapest pair of bare numpy products `Kt @ X.T` and `At @ X` over the\n"
        "contiguous splits, with BLAS's own threads. Rounds in which a calibration loop found the machine shared were\n"
        "repeated; "
        f"kept in spite of that: {disturbed}.\n{NOTE}\n\n"
        + markdown(["", *results], medians)
        + f"\n\nThe first sweep after {SETTLE_SECONDS} s of nothing, medians: cores asleep, caches cold.\n\n"
        + markdown(["", *results], first)
        + "\n\nThe fastest sweep of each; where many rounds were disturbed, these say more: threaded BLAS collapses\n"
        "beside other work, and takes the ratios of the medians with it.\n\n" + markdown(["", *results], fastest)
    )


def _with_ratios(results: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    rows = []
    for name in next(iter(results.values())):
        cells = [(taken[name], taken[name] / taken["two products"]) for taken in results.values()]
        rows.append([name, *(f"{milliseconds:.3g} ({ratio:.2f})" for milliseconds, ratio in cells)])
    return rows


def memory_table(results: Mapping[str, Mapping[str, float]]) -> str:
    names = next(iter(results.values()))
    rows = [[name, *(f"{peaks[name]:.0f}" for peaks in results.values())] for name in names]
    return "## Megabytes beyond the tensor, at their peak\n\n" + markdown(["", *results], rows)


def error_table(results: Mapping[str, Mapping[str, Approach]]) -> str:
    names = next(iter(results.values()))
    rows = [[name, *(_when(approaches[name]) for approaches in results.values())] for name in names]
    for name, figures in PLANC.items():
        rows.append([f"PLANC {name} (note)", *(f"{figures[tensor][1]:g}" for tensor in results)])
    return "## Seconds to within 1 % of the best relative error, beta = 0\n\n" + markdown(["", *results], rows)


def objective_table(results: Mapping[str, Mapping[str, Approach]]) -> str:
    names = next(iter(results.values()), {})
    rows = [
        [name, *(f"{_when(approaches[name])}; {approaches[name].components}" for approaches in results.values())]
        for name in names
    ]
    return (
        f"## Seconds to within 1 % of the best objective, beta = {BETA:g}; number of components (10 are true)\n\n"
        + markdown(["", *results], rows)
    )


def gain_table(results: Mapping[str, Gain]) -> str:
    rows = [[name, f"{gain.sooner:.2f}", f"{gain.objective:.5f}"] for name, gain in results.items()]
    return (
        f"## What a compressed tensor gains: accelerate = auto, beta = {BETA:g}, medians over the seeds\n\n"
        "Both runs go on until their stopping rule holds. An exact one not done after half a minute is stopped\n"
        "there, and the accelerated one where it has come as far. On E3 auto declines: 1 is what to expect; on E4 it\n"
        "begins in single precision.\n\n"
        + markdown(["", "times sooner than exact sweeps", "objective / the exact run's"], rows)
    )


def _when(approach: Approach) -> str:
    if approach.seconds is None:
        return f"not reached, {100 * approach.above:.1f} % above"
    return f"{approach.seconds:.2g}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
