"""The result of a job: factors and numbers, for other packages and as a picture."""

from collections.abc import Sequence
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from ncp_client.http.errors import NcpError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
# Up to so many entries are marked by points; up to so many texts are written below an axis.
MAX_MARKED_ENTRIES, MAX_TICK_LABELS = 12, 30


class Result:
    """What came of a job. `job` is its record, `numbers` all that the server tells of the result."""

    def __init__(
        self, job: dict[str, Any], factors: "list[NDArray[Any]]", axes: Sequence[dict[str, Any]] | None = None
    ) -> None:
        self.job = job
        self.factors = factors
        self.axes = axes
        self.numbers: dict[str, Any] = job["result"]

    @property
    def objective(self) -> float:
        return float(self.numbers["objective"])

    @property
    def relative_error(self) -> float:
        return float(self.numbers["relative_error"])

    @property
    def fit(self) -> float:
        return float(self.numbers["fit"])

    @property
    def components(self) -> int:
        """How many components are left in all modes."""
        return int(self.numbers["nonzero_components"]["all_modes"])

    @property
    def warnings(self) -> list[str]:
        return list(self.numbers["warnings"])

    @property
    def weights(self) -> "NDArray[np.float64]":
        """The size of every component: the product of its columns' norms."""
        import numpy as np

        return np.array(self.numbers["weights"], np.float64)

    def to_tensorly(self) -> Any:
        """A `tensorly.cp_tensor.CPTensor` with unit weights: the factors are as they are."""
        import numpy as np

        return _import_optional("tensorly.cp_tensor").CPTensor((np.ones(self.factors[0].shape[1]), self.factors))

    def to_xarray(self) -> Any:
        """An `xarray.Dataset` of `A1` … `AN`, with the names, units and values of the axes as coordinates."""
        variables: dict[str, Any] = {"weight": ("component", self.weights)}
        coordinates: dict[str, Any] = {"component": range(1, len(self.weights) + 1)}
        taken = {"component", "weight", *(f"A{mode}" for mode in range(1, len(self.factors) + 1))}
        for mode, factor in enumerate(self.factors, start=1):
            axis = self._axis(mode)
            name = f"{axis['name']} (mode {mode})" if axis["name"] in taken else axis["name"]
            variables[f"A{mode}"] = ((name, "component"), factor)
            if axis.get("values") is not None:
                unit = {"units": axis["unit"]} if axis.get("unit") else {}
                coordinates[name] = (name, axis["values"], unit)
        numbers = {name: self.numbers[name] for name in ("objective", "relative_error", "iterations", "seconds")}
        return _import_optional("xarray").Dataset(variables, coordinates, {"job_id": self.job["id"], **numbers})

    def plot(self, path: "str | PathLike[str] | None" = None) -> "Figure":
        """Every component in every mode as a line, the largest first; saved if a path is given."""
        modes = len(self.factors)
        figure: Figure = _import_optional("matplotlib.figure").Figure(figsize=(4 * modes, 3.2), layout="constrained")
        for mode, axes in enumerate(figure.subplots(1, modes, squeeze=False)[0], start=1):
            self._draw(axes, mode)
        figure.axes[0].set_ylabel("column, unit norm")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside right upper", title="component: share")
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    def _draw(self, axes: "Axes", mode: int) -> None:
        import numpy as np

        factor, axis = self.factors[mode - 1], self._axis(mode)
        values = axis.get("values")
        numeric = values is not None and not isinstance(values[0], str)
        places = np.asarray(values) if numeric else np.arange(len(factor))
        norms, shares = np.linalg.norm(factor, axis=0), self.weights / (self.weights.sum() or 1.0)
        largest = [place for place in np.argsort(-shares, kind="stable") if shares[place] > 0]
        for rank, place in enumerate(largest):
            axes.plot(
                places,
                factor[:, place] / norms[place],
                STYLES[rank // len(COLOURS) % len(STYLES)],
                color=COLOURS[rank % len(COLOURS)],
                marker="." if len(factor) <= MAX_MARKED_ENTRIES else "",
                label=f"{rank + 1}: {shares[place]:.0%}",
            )
        if values is not None and not numeric and len(values) <= MAX_TICK_LABELS:
            axes.set_xticks(places, values, rotation=45, ha="right")
        axes.set_xlabel(f"{axis['name']} / {axis['unit']}" if axis.get("unit") else axis["name"])
        axes.set_ylim(bottom=0)

    def _axis(self, mode: int) -> dict[str, Any]:
        return {"name": f"mode {mode}", **(self.axes[mode - 1] if self.axes else {})}

    def __repr__(self) -> str:
        components = "1 component" if self.components == 1 else f"{self.components} components"
        return f"<Result of job {self.job['id']}: {components}, relative error {self.relative_error:.4g}>"


def _import_optional(module: str) -> Any:
    """A module of a package that only this needs."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise NcpError(f"this needs {package}, which is not installed here; run pip install {package}") from error
