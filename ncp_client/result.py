"""The result of a job, its conversion for other packages, and a plot of its components."""

from collections.abc import Callable, Sequence
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from ncp_client.http.errors import NcpError, NotFound

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

# The colours of Okabe and Ito, which colour-blind people can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
# Entries of a factor up to which each is marked by a point, and labels up to which all are written below an axis.
MAX_MARKED_ENTRIES, MAX_TICK_LABELS = 12, 30


class Result:
    """Result of a job, as returned by `Client.decompose` and `Job.result`.

    Parameters
    ----------
    job : dict
        Record of the job.
    factors : list of ndarray
        One array of shape (length, rank) per mode.
    axes : sequence of dict, optional
        Name, unit and values of each mode.
    bands : list, optional
        Lower and upper bounds of each factor, or None for a mode without.
    diagnose : callable, optional
        Returns the diagnostics; called when they are first read.

    Attributes
    ----------
    job, factors, axes, bands
        As given.
    numbers : dict
        Everything in the record about the result.

    Examples
    --------
    >>> result = client.decompose(array, rank=2)
    >>> [factor.shape for factor in result.factors]
    [(8, 2), (7, 2), (6, 2)]
    >>> result.fit == 1 - result.relative_error
    True
    """

    def __init__(
        self,
        job: dict[str, Any],
        factors: "list[NDArray[Any]]",
        axes: Sequence[dict[str, Any]] | None = None,
        bands: "Sequence[tuple[NDArray[Any], NDArray[Any]] | None] | None" = None,
        diagnose: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self.job = job
        self.factors = factors
        self.bands = list(bands or [None] * len(factors))
        self.axes = axes
        self.numbers: dict[str, Any] = job["result"]
        self._diagnose = diagnose
        self._diagnostics: dict[str, Any] | None = None

    @property
    def objective(self) -> float:
        """Value of the objective, penalties included."""
        return float(self.numbers["objective"])

    @property
    def relative_error(self) -> float:
        """Norm of the residual, relative to that of the tensor."""
        return float(self.numbers["relative_error"])

    @property
    def fit(self) -> float:
        """One minus the relative error."""
        return float(self.numbers["fit"])

    @property
    def components(self) -> int:
        """Number of components that are nonzero in all modes."""
        return int(self.numbers["nonzero_components"]["all_modes"])

    @property
    def warnings(self) -> list[str]:
        """Warnings about the model."""
        return list(self.numbers["warnings"])

    @property
    def stability(self) -> dict[str, Any] | None:
        """Replicability and split-half congruence of the components; None unless it was asked for."""
        found: dict[str, Any] | None = self.numbers.get("stability")
        return found

    @property
    def excluded(self) -> dict[int, list[int]]:
        """Indices that were left out of the fit, by mode, counted from 1."""
        return {int(mode): list(indices) for mode, indices in self.numbers.get("excluded", {}).items()}

    @property
    def diagnostics(self) -> dict[str, Any] | None:
        """Diagnostics of the model; None if the job was submitted with ``diagnose=False`` or was cancelled.

        Examples
        --------
        >>> sorted(client.decompose(array, rank=2).diagnostics)[:3]
        ['components', 'congruence', 'core_consistency']
        """
        if self._diagnostics is None and self._diagnose is not None:
            try:
                self._diagnostics = self._diagnose()
            except NotFound:
                return None
        return self._diagnostics

    @property
    def weights(self) -> "NDArray[np.float64]":
        """Size of each component: the product of the norms of its columns."""
        import numpy as np

        return np.array(self.numbers["weights"], np.float64)

    def to_tensorly(self) -> Any:
        """Convert to tensorly, which must be installed.

        Returns
        -------
        tensorly.cp_tensor.CPTensor
            The factors, unchanged, with weights of 1.

        Examples
        --------
        >>> client.decompose(array, rank=2).to_tensorly().to_tensor().shape
        (8, 7, 6)
        """
        import numpy as np

        return _import_optional("tensorly.cp_tensor").CPTensor((np.ones(self.factors[0].shape[1]), self.factors))

    def to_xarray(self) -> Any:
        """Convert to xarray, which must be installed.

        Returns
        -------
        xarray.Dataset
            The factors as ``A1``, ``A2`` and so on, with the labels of the modes as coordinates.

        Examples
        --------
        >>> client.decompose(array, rank=2, axes=["sample", "emission", "time"]).to_xarray()["A2"].dims
        ('emission', 'component')
        """
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
        """Plot the columns of the factors, one panel per mode, with their bands, with matplotlib.

        Parameters
        ----------
        path : str or path, optional
            File to save the figure to; its extension decides the format.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.

        Examples
        --------
        >>> figure = client.decompose(array, rank=2).plot("components.png")
        >>> len(figure.axes)
        3
        """
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
        band = self.bands[mode - 1]
        for rank, place in enumerate(largest):
            if band is not None:
                lower, upper = (bound[:, place] / norms[place] for bound in band)
                axes.fill_between(places, lower, upper, color=COLOURS[rank % len(COLOURS)], alpha=0.2, linewidth=0)
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
    """Import a module of an optional dependency."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise NcpError(f"{package} is not installed; run pip install {package}") from error
