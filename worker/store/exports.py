"""Factors for other programs: components scaled, sorted and dropped on request, as npz, mat, csv or NetCDF."""

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from ncp_client.formats.npz import read_npz
from sparse_ncp.solvers import InvalidInput
from sparse_ncp.solvers.metrics import DEAD_SHARE, weights
from sparse_ncp.solvers.runtime import Array
from sparse_ncp.worker.contract import Axis, Export, Order, Scale, Zeros
from sparse_ncp.worker.errors import NotFound

# Neither a .mat file of version 5 nor a NetCDF 3 file can hold a larger variable.
LARGEST_VARIABLE = (1 << 31) - 1
# scipy writes the time into it, and the same factors shall be the same bytes.
MAT_HEADER = b"MATLAB 5.0 MAT-file".ljust(116)
# What follows a text label's name in that of the dimension of its characters.
CHARACTERS = "_characters"
# A text that begins with one of these may be a formula to a spreadsheet, unless it is a number.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
NUMBER = re.compile(r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?")
FACTOR = re.compile(r"A[1-9][0-9]*")
# The bands of a factor, and numbers that belong to components, of a job whose stability was assessed.
BAND = re.compile(r"(lower|upper)_A([1-9][0-9]*)")
PER_COMPONENT = ("replicability", "split_half")


class Model(NamedTuple):
    """Factors with their description: plain values and small arrays by name. `axes` and `settings` are JSON.

    `bands` are the lower and upper bounds of factors, by names such as lower_A2.
    """

    factors: Sequence[Array]
    about: Mapping[str, Any]
    bands: Mapping[str, Array] = MappingProxyType({})

    @property
    def named_factors(self) -> dict[str, Any]:
        """Name the factors as their files, A1, A2 and so on, then their bands."""
        return {**{f"A{mode}": A for mode, A in enumerate(self.factors, start=1)}, **self.bands}

    @property
    def axes(self) -> Sequence[Axis] | None:
        """The labels of the tensor, one axis per mode."""
        stored = self.about.get("axes")
        return None if stored is None else [Axis.model_validate(axis) for axis in json.loads(stored)]


def read_model(file: BinaryIO) -> Model:
    """Read a file `factors.npz`; one of an older version contains factors alone."""
    arrays = read_npz(file)
    names = [name for name in arrays if FACTOR.fullmatch(name)]
    bands = {name: arrays[name] for name in arrays if BAND.fullmatch(name)}
    about = {name: arrays[name] for name in arrays if name not in names and name not in bands}
    factors = [arrays[f"A{mode}"] for mode in range(1, len(names) + 1)]
    return Model(factors, {name: found.item() if found.ndim == 0 else found for name, found in about.items()}, bands)


def arranged(model: Model, scale: Scale, order: Order, zeros: Zeros) -> Model:
    """Drop, sort and scale components as requested; `components` has their numbers in the run."""
    sizes = weights(model.factors)
    kept = np.arange(len(sizes))
    if zeros == "drop":
        kept = kept[sizes > DEAD_SHARE * model.about.get("tensor_norm", 0.0)]
    if order == "share":
        kept = kept[np.argsort(-sizes[kept], kind="stable")]
    factors: list[Array] = [A[:, kept] for A in model.factors]
    bands = {name: bound[:, kept] for name, bound in model.bands.items()}
    found = sizes[kept]
    if scale != "none":
        exact = (A.astype(np.float64) for A in factors)
        lengths = [np.linalg.norm(A, axis=0) if scale == "unit" else A.max(axis=0) for A in exact]
        divisors = [np.where(length > 0, length, 1.0) for length in lengths]  # a column of zeros stays one
        factors = [(A / divisor).astype(A.dtype) for A, divisor in zip(factors, divisors, strict=True)]
        bands = {name: bound / divisors[_mode_of(name) - 1] for name, bound in bands.items()}
        found = np.prod(lengths, axis=0)
    numbers = {name: model.about[name][kept] for name in PER_COMPONENT if name in model.about}
    return Model(factors, {**model.about, **numbers, "weights": found, "components": kept + 1, "scale": scale}, bands)


def _mode_of(band: str) -> int:
    """Return the mode of a band by its name."""
    return int(band.partition("_A")[2])


def export(model: Model, asked: Export) -> bytes:
    """A file in the format asked for. The same model gives the same bytes."""
    if asked.mode is not None and asked.mode > len(model.factors):
        raise NotFound("factor", f"A{asked.mode}", field="mode")
    changed = arranged(model, asked.scale, asked.order, asked.zeros)
    if asked.format == "csv" and asked.mode is not None:
        return _table(changed, asked.mode)
    encode: Mapping[str, Callable[[Model], bytes]] = {"npz": to_npz, "mat": to_mat, "csv": to_csv, "nc": to_netcdf}
    if asked.format in ("mat", "nc") and not fits([*changed.factors, *changed.bands.values()]):
        problem = f"{asked.format} cannot hold a factor of 2 GiB or more"
        raise InvalidInput("format", problem, "ask for npz, or for one mode as .npy")
    return encode[asked.format](changed)


def fits(factors: Iterable[Array]) -> bool:
    """Return whether a .mat or NetCDF file can hold them."""
    return all(A.nbytes < LARGEST_VARIABLE for A in factors)


def to_npz(model: Model) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **model.named_factors, **model.about)
    return buffer.getvalue()


def to_mat(model: Model) -> bytes:
    """Write a file for MATLAB: numbers are doubles, lists are columns, labels a structure."""
    # Takes a third of a second to load: only a process that writes such a file should pay for it.
    import scipy.io

    about = {name: float(value) if isinstance(value, int) else value for name, value in model.about.items()}
    about["components"] = np.asarray(about["components"], np.float64)
    if (axes := model.axes) is not None:
        labels = about["axes"] = dict[str, Any]()
        for mode, axis in enumerate(axes, start=1):
            values = np.array(axis.values, object if axis.is_text else np.float64)
            labels[f"mode{mode}"] = {"name": axis.name, "unit": axis.unit or "", "values": values}
    buffer = io.BytesIO()
    scipy.io.savemat(cast(Any, buffer), {**model.named_factors, **about}, oned_as="column")
    return MAT_HEADER + buffer.getvalue()[len(MAT_HEADER) :]


def to_csv(model: Model) -> bytes:
    """Write a zip archive: a table per mode, the components with their weights, and a description as JSON."""
    names = ("components", "weights", *(name for name in PER_COMPONENT if name in model.about))
    components = zip(*(model.about[name].tolist() for name in names), strict=True)
    about = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in model.about.items()
        if name not in PER_COMPONENT  # they are beside the weights
    }
    files = {f"A{mode}.csv": _table(model, mode) for mode in range(1, len(model.factors) + 1)}
    files |= {f"{name}.csv": _table(model, _mode_of(name), bound) for name, bound in model.bands.items()}
    files["components.csv"] = _csv([["component", "weight", *names[2:]], *components])
    files["about.json"] = json.dumps(about, indent=2, ensure_ascii=False).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            # Of 1980, no time of writing. Digits pack as well at the level that is seven times as fast.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, compresslevel=1)
    return buffer.getvalue()


def _table(model: Model, mode: int, band: Array | None = None) -> bytes:
    """Return one factor or band as CSV: a row per index, named by its label or counted from 0, with all digits."""
    A, axes = model.factors[mode - 1] if band is None else band, model.axes
    axis = axes[mode - 1] if axes else None
    unit = f" ({axis.unit})" if axis and axis.unit else ""
    title = f"{axis.name}{unit}" if axis else "index"
    labels: Iterable[float | str] = range(len(A)) if axis is None else axis.values
    labels = (int(label) if isinstance(label, float) and label.is_integer() else label for label in labels)
    columns = [f"component_{number}" for number in model.about["components"]]
    return _csv([[title, *columns], *([label, *row] for label, row in zip(labels, A.tolist(), strict=True))])


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cell, row) for row in rows)
    return text.getvalue().encode()


def _cell(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula: such a text begins with an apostrophe.

    A text that is a number, such as "-5", stays as it is.
    """
    if not isinstance(value, str) or not value.lstrip(" ").startswith(FORMULA_STARTS):
        return value
    return value if NUMBER.fullmatch(value) else f"'{value}"


def to_netcdf(model: Model) -> bytes:
    """Write NetCDF 3: dimensions named by the labels, coordinates where there are labels, the rest as attributes."""
    import scipy.io

    if not len(model.about["components"]):
        problem = "leaves no component, and NetCDF 3 has no empty dimension"
        raise InvalidInput("zeros", problem, "leave it out, or ask for another format")
    buffer, axes = io.BytesIO(), model.axes
    with scipy.io.netcdf_file(cast(Any, buffer), "w", version=2) as file:
        file.createDimension("component", len(model.about["components"]))
        _variable(file, "component", ("component",), np.asarray(model.about["components"], np.int32))
        _variable(file, "weights", ("component",), model.about["weights"])
        for mode, (A, name) in enumerate(
            zip(model.factors, _dimensions(axes, len(model.factors)), strict=True), start=1
        ):
            file.createDimension(name, len(A))
            if axes:
                _coordinate(file, name, axes[mode - 1])
            _variable(file, f"A{mode}", (name, "component"), A)
        for name, bound in model.bands.items():
            _variable(file, name, tuple(file.variables[f"A{_mode_of(name)}"].dimensions), bound)
        for name in PER_COMPONENT:
            if name in model.about:
                _variable(file, name, ("component",), model.about[name])
        for name, value in model.about.items():
            if name in {"axes", "components", "weights", *PER_COMPONENT}:
                continue
            if isinstance(value, str):
                setattr(file, name, value.encode())
            else:  # in types that NetCDF 3 has
                numbers = np.atleast_1d(value)
                setattr(file, name, numbers.astype(np.float64 if numbers.dtype.kind == "f" else np.int32))
        file.flush()
        return buffer.getvalue()


def _dimensions(axes: Sequence[Axis] | None, order: int) -> list[str]:
    """Return names that NetCDF allows for dimensions: ASCII, unique, and not those of variables."""
    modes = range(1, order + 1)
    if not axes:
        return [f"mode{mode}" for mode in modes]
    variables = [f"{bound}A{mode}" for mode in modes for bound in ("", "lower_", "upper_")]
    taken, names = {"component", "weights", *PER_COMPONENT, *variables}, list[str]()
    for axis in axes:
        name = re.sub(r"[^A-Za-z0-9_]+", "_", axis.name)
        name = name if re.match(r"[A-Za-z]", name) else f"axis_{name}"
        while {name, f"{name}{CHARACTERS}"} & taken:
            name += "_"
        taken |= {name, f"{name}{CHARACTERS}"}
        names.append(name)
    return names


def _coordinate(file: Any, name: str, axis: Axis) -> None:
    """Write the labels as a variable with the name of its dimension: numbers, or text as rows of characters."""
    if axis.is_text:
        encoded = np.array([str(value).encode() for value in axis.values])
        characters = encoded.view("S1").reshape(len(encoded), -1)
        file.createDimension(f"{name}{CHARACTERS}", characters.shape[1])
        variable = _variable(file, name, (name, f"{name}{CHARACTERS}"), characters)
        variable._Encoding = b"utf-8"
    else:
        variable = _variable(file, name, (name,), np.array(axis.values))
    variable.long_name = axis.name.encode()
    if axis.unit:
        variable.units = axis.unit.encode()


def _variable(file: Any, name: str, dimensions: tuple[str, ...], values: Any) -> Any:
    variable = file.createVariable(name, values.dtype, dimensions)
    variable[:] = values
    return variable
