"""Plots of studies and runs, labelled, made without a screen, in colours that suit colour-blind readers."""

import io
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from sparse_ncp.solvers.bcd.state import History
from sparse_ncp.solvers.metrics import psnr, weights
from sparse_ncp.solvers.studies.evidence.curve import PER_COMPONENT
from sparse_ncp.solvers.studies.evidence.vote import IN_RANGE, SEEDS_AGREE
from sparse_ncp.solvers.studies.runs import Run, matches
from sparse_ncp.solvers.studies.settings import Cell
from sparse_ncp.solvers.studies.state import Choice
from sparse_ncp.solvers.studies.tables import Row
from sparse_ncp.solvers.tensor.products import Array, Float64

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish; the markers distinguish them in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
MARKERS = "osD^vP*"
GREY = "#666666"
# Curves drawn for one cell: more would hide each other.
MOST_CURVES = 30
# Components that a plot has room for.
MOST_COMPONENTS = 12
DOTS_PER_INCH = 120
# Modes of up to this length have every entry marked and named.
FEW = 8
# Horizontal offset between methods, in steps between two weights, so that equal values do not hide each other.
BESIDE = 0.08
# With fewer values than this the values are marked in the box.
FEW_IN_A_BOX = 5
Format: TypeAlias = Literal["svg", "png", "pdf"]
_rendering = Lock()


def choice(study: Choice) -> "Figure":
    """Plot votes, gains against noise, the agreement of seeds and the error; the suggestion is marked."""
    figure, (votes, gains, agreement, error) = _figure(4, width=6.4, height=9.2, sharex=True)
    k = np.array([point.components for point in study.points])
    gained = np.array([point.gain for point in study.points])
    votes.bar(k, [point.votes or 0.0 for point in study.points], width=0.5, color=COLOURS[4])
    votes.axhline(IN_RANGE, color=GREY, ls=":", lw=1)
    votes.set_ylim(0, 1.05)
    votes.set_ylabel("share of\nthe votes")
    gains.axhspan(1e-2, PER_COMPONENT, color=COLOURS[5], alpha=0.25, lw=0, label="noise")
    gains.semilogy(k, np.maximum(gained, 1e-2), "o-", color=COLOURS[0], label="the tensor")
    gains.set_ylim(5e-2, 3 * max(1.0, gained.max()))
    gains.set_ylabel("gain of the last\ncomponent [u]")
    gains.legend(loc="upper right", fontsize="small")
    agreement.plot(k, [point.agreement for point in study.points], "s-", color=COLOURS[2])
    agreement.axhline(SEEDS_AGREE, color=GREY, ls=":", lw=1)
    agreement.set_ylim(-0.03, 1.05)
    agreement.set_ylabel("agreement of\nseeds [cosine]")
    error.semilogy(k, [point.relative_error for point in study.points], "D-", color=COLOURS[3], label="relative error")
    error.axhline(study.noise_level, color=GREY, ls="--", lw=1, label="noise level")
    error.set_ylabel("relative error")
    error.set_xlabel("number of components")
    error.set_xticks(k)
    error.legend(loc="upper right", fontsize="small")
    for axes in (votes, gains, agreement, error):
        axes.axvline(study.advice.suggestion, color=COLOURS[1], lw=6, alpha=0.35, zorder=0)
    advice = study.advice
    verdict = (
        f"components: {advice.components}" if advice.components is not None else f"suggestion: {advice.suggestion}"
    )
    figure.suptitle(f"{verdict} (confidence: {advice.confidence})")
    return figure


def objective(runs: Sequence[Run]) -> "Figure":
    """Plot the objective against computing time, with one panel per rank, weight and penalty."""
    done = [run for run in runs if run.error is None]
    panels = list(dict.fromkeys((run.cell.rank, _weight(run.cell), run.cell.penalty) for run in runs))
    figure, axes = _figure(len(panels), width=6.4, height=1 + 2.6 * len(panels))
    methods = list(dict.fromkeys(run.cell.method for run in runs))
    for panel, axis in zip(panels, axes, strict=True):
        shown: dict[str, int] = {}
        for run in done:
            own = run.cell.rank, _weight(run.cell), run.cell.penalty
            if own != panel or shown.get(run.cell.method, 0) >= MOST_CURVES:
                continue
            first = run.cell.method not in shown
            shown[run.cell.method] = shown.get(run.cell.method, 0) + 1
            colour, marker = _look(methods.index(run.cell.method))
            axis.plot(
                run.descent.seconds, run.descent.objective, color=colour, lw=1, alpha=0.8, marker=marker, ms=4,
                markevery=[-1], label=run.cell.method if first else None,
            )  # fmt: skip
            axis.set_title(_weight_title(run), fontsize="medium")
        _log_where_positive(axis)
        axis.set_ylabel("objective")
        axis.set_xlabel("computing time [s]")
        if shown:
            axis.legend(fontsize="small", ncols=2)
        else:
            _nothing(axis, "no run has ended")
    return figure


def quality(runs: Sequence[Run], mode: int = 1, reference: Array | None = None) -> "Figure":
    """Plot the PSNR against a reference, or the factor match between repeats, as one box per cell."""
    cells = list(dict.fromkeys(run.cell for run in runs))
    values = []
    for cell in cells:
        done = [run for run in runs if run.cell == cell and run.error is None]
        values.append(matches(done) if reference is None else [psnr(run.factors[mode - 1], reference) for run in done])
    return boxes(
        cells, values, f"PSNR of mode {mode} [dB]" if reference is not None else "factor match between repeats"
    )


def boxes(cells: Sequence[Cell], values: Sequence[Sequence[float]], title: str) -> "Figure":
    """Plot one box for the finite values of each cell."""
    figure, (axis,) = _figure(1, width=6.4, height=1.6 + 0.28 * len(cells))
    shown = [[value for value in found if np.isfinite(value)] for found in values]
    drawn = axis.boxplot(shown, orientation="horizontal", widths=0.6, patch_artist=True, medianprops={"color": "black"})
    methods = list(dict.fromkeys(cell.method for cell in cells))
    for place, (box, cell) in enumerate(zip(drawn["boxes"], cells, strict=True)):
        colour, marker = _look(methods.index(cell.method))
        box.set_facecolor(colour)
        box.set_alpha(0.7)
        if len(shown[place]) < FEW_IN_A_BOX:
            axis.plot(shown[place], [place + 1] * len(shown[place]), marker, color=colour, ms=5)
    axis.set_yticks(range(1, len(cells) + 1), [str(cell) for cell in cells], fontsize="small")
    axis.invert_yaxis()
    axis.set_xlabel(title)
    if not any(shown):
        _nothing(axis, "no two runs to compare" if "match" in title else "no run has ended")
    return figure


def path(rows: Sequence[Row]) -> "Figure":
    """Plot components and relative error against the weight of the penalty, with one column per rank."""
    ranks, methods = (list(dict.fromkeys(getattr(row.cell, name) for row in rows)) for name in ("rank", "method"))
    by_sparsity = any(row.cell.sparsity is not None for row in rows)
    asked = sorted({_weight(row.cell) for row in rows})
    figure, (components, errors) = _grid(2, len(ranks), width=3.4, height=2.6, share="row")
    for rank, above, below in zip(ranks, components, errors, strict=True):
        for place, method in enumerate(methods):
            colour, marker = _look(place)
            aside = BESIDE * (place - (len(methods) - 1) / 2)
            line = [row for row in rows if (row.cell.rank, row.cell.method) == (rank, method) and row.components]
            # Evenly spaced, since weights span decades and may be zero.
            at = [asked.index(_weight(row.cell)) + aside for row in line]
            for axis, measure in ((above, "components"), (below, "relative_error")):
                spreads = [getattr(row, measure) for row in line]
                means, deviations = [spread.mean for spread in spreads], [spread.deviation for spread in spreads]
                axis.errorbar(at, means, deviations, color=colour, marker=marker, capsize=3, lw=1.2, label=method)
        above.set_title(f"rank {rank}", fontsize="medium")
        below.set_xlabel("sparsity [fraction of the norm]" if by_sparsity else "β")
        below.set_xticks(range(len(asked)), [f"{weight:g}" for weight in asked])
    components[0].set_ylabel("components")
    errors[0].set_ylabel("relative error")
    for axis in (components[0], errors[0]):
        axis.set_ylim(bottom=0)
    figure.legend(*components[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(methods)))
    return figure


def convergence(history: History) -> "Figure":
    """Plot objective and relative error after every sweep; trial starts in grey, the final run in colour."""
    figure, axes = _figure(2, width=6.4, height=4.8, sharex=True)
    lines: dict[int | None, list[int]] = {}
    for place, start in enumerate(history.start):
        lines.setdefault(start, []).append(place)
    for axis, values, title, colour in (
        (axes[0], history.objective, "objective", COLOURS[0]),
        (axes[1], history.relative_error, "relative error", COLOURS[3]),
    ):
        for start, places in lines.items():
            at, shown = [place + 1 for place in places], [values[place] for place in places]
            axis.plot(
                at, shown, color=GREY if start else colour, lw=0.8 if start else 1.6, marker="." if len(at) == 1 else ""
            )
        _log_where_positive(axis)
        axis.set_ylabel(title)
        if not lines:
            _nothing(axis, "no sweep has ended")
    axes[1].set_xlabel("iteration")
    return figure


class Labels(NamedTuple):
    """Labels of a mode: its title, and a number or a text for each index."""

    title: str
    values: Sequence[float] | Sequence[str] | None = None


def components(factors: Sequence[Array], labels: Sequence[Labels] | None = None) -> "Figure":
    """Plot one panel per component and mode, the strongest first, each column divided by its maximum."""
    w = weights(factors)
    strongest = [int(place) for place in np.argsort(-w, kind="stable") if w[place] > 0][:MOST_COMPONENTS]
    figure, grid = _grid(max(1, len(strongest)), len(factors), width=2.4, height=0.95, share="col")
    total = float(np.square(w).sum())
    for row, component in enumerate(strongest):
        share = float(np.square(w[component])) / total
        grid[row][0].set_ylabel(f"{row + 1}\n{share:.0%}", rotation=0, ha="right", va="center")
    for mode, A in enumerate(factors, start=1):
        below = labels[mode - 1] if labels else Labels(f"mode {mode}")
        at = _positions(len(A), below)
        for row, component in enumerate(strongest):
            axis, column = grid[row][mode - 1], np.asarray(A[:, component], np.float64)
            axis.fill_between(at, column / column.max(), color=_look(row)[0], alpha=0.35, lw=0)
            axis.plot(at, column / column.max(), color=_look(row)[0], lw=1, marker="." if len(A) <= FEW else "")
            axis.set_ylim(0, 1.08)
            axis.set_yticks([0, 1])
        bottom = grid[-1][mode - 1]
        bottom.set_xlabel(below.title)
        if below.values is not None and len(A) <= FEW:
            bottom.set_xticks(at, [f"{value:g}" if isinstance(value, float) else str(value) for value in below.values])
    if not strongest:
        _nothing(grid[0][0], "every component is zero")
    return figure


def _positions(length: int, labels: Labels) -> Float64:
    """Return the positions of entries: their labels if these are numbers, else their indices from 1."""
    if labels.values is None or isinstance(labels.values[0], str):
        return np.arange(1.0, length + 1)
    return np.array(labels.values, np.float64)


def render(figure: "Figure", format: Format) -> bytes:
    """Render a figure as a file; equal figures give equal bytes. One at a time, as matplotlib is not thread-safe."""
    from matplotlib import rc_context

    content = io.BytesIO()
    dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    with _rendering, rc_context({"svg.hashsalt": "sparse-ncp"}):
        figure.savefig(content, format=format, dpi=DOTS_PER_INCH, metadata=dated[format])
    return content.getvalue()


def _figure(rows: int, width: float, height: float, sharex: bool = False) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure  # half a second to load; not pyplot, which would ask for a screen

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=sharex, squeeze=False)
    return figure, list(axes[:, 0])


def _grid(
    rows: int, columns: int, width: float, height: float, share: Literal["row", "col"]
) -> "tuple[Figure, list[list[Axes]]]":
    """Return a grid of panels that share the y axis along rows, or the x axis along columns only."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns + 0.4, height * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex="col", sharey="row" if share == "row" else False)
    return figure, [list(row) for row in axes]


def _look(place: int) -> tuple[str, str]:
    return COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]


def _weight(cell: Cell) -> float:
    """Return the requested weight of the penalty."""
    return (cell.beta if cell.sparsity is None else cell.sparsity) or 0.0


def _weight_title(run: Run) -> str:
    name = "β =" if run.cell.sparsity is None else "sparsity"
    squared = " (squared penalty)" if run.cell.penalty == "l1_squared" else ""
    return f"rank {run.cell.rank}, {name} {_weight(run.cell):g}{squared}"


def _log_where_positive(axis: "Axes") -> None:
    """Use a logarithmic scale, unless a value is zero: an exact fit without a penalty."""
    values = [float(value) for line in axis.get_lines() for value in np.asarray(line.get_ydata(), np.float64)]
    if values and min(values) > 0:
        axis.set_yscale("log")


def _nothing(axis: "Axes", words: str) -> None:
    axis.text(0.5, 0.5, words, transform=axis.transAxes, ha="center", va="center", color=GREY)
