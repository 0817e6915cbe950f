"""Labels of excluded indices: find the index of a label, and the label of an index."""

from sparse_ncp.solvers import InvalidInput, Settings
from sparse_ncp.worker.contract import Axes


def resolve_labels(settings: Settings, axes: Axes | None) -> Settings:
    """Return the settings with indices in place of labels.

    Raises
    ------
    InvalidInput
        If there are no axes, or a label is of no index or of several.
    """
    exclude = settings.exclude
    if exclude is None or not any(isinstance(entry, str) for entries in exclude.values() for entry in entries):
        return settings
    if axes is None:
        raise InvalidInput(
            "exclude", "has labels, and the tensor has no axes", "give indices, or label the tensor first"
        )
    found = {mode: tuple(_index(mode, entry, axes) for entry in entries) for mode, entries in exclude.items()}
    for mode, indices in found.items():
        twice = next((index for place, index in enumerate(indices) if index in indices[:place]), None)
        if twice is not None:
            problem = f"names index {twice} of mode {mode} by its number and by its label"
            raise InvalidInput("exclude", problem, "give one of the two")
    return settings.model_copy(update={"exclude": found})


def name_index(axes: Axes | None, mode: int, index: int) -> int | str:
    """Return the text that labels an index of a mode, counted from 1, if it labels no other; else the index."""
    if axes is None or not axes[mode - 1].is_text:
        return index
    values = axes[mode - 1].values
    label = str(values[index])
    return label if values.count(values[index]) == 1 else index


def _index(mode: int, entry: int | str, axes: Axes) -> int:
    if not isinstance(entry, str):
        return entry
    if mode > len(axes):
        problem = f"names mode {mode} of a tensor with {len(axes)}"
        raise InvalidInput("exclude", problem, f"count the modes from 1 to {len(axes)}")
    axis = axes[mode - 1]
    labels = [value if isinstance(value, str) else f"{value:g}" for value in axis.values]
    found = [index for index, label in enumerate(labels) if label == entry]
    if len(found) == 1:
        return found[0]
    if found:
        problem = f"names {entry!r}, the label of {len(found)} indices of mode {mode}"
        raise InvalidInput("exclude", problem, f"give indices: {', '.join(map(str, found))}")
    problem = f"names {entry!r}, which labels no index of mode {mode} ({axis.name})"
    raise InvalidInput("exclude", problem, f"give one of its labels, such as {labels[0]!r}, or an index")
