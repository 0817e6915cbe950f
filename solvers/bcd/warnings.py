"""Warnings that follow from the diagnostics of a result, each with a remedy that can be pasted."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from sparse_ncp.solvers.diagnostics.diagnose import Diagnostics, UnobservedDiagnostics
from sparse_ncp.solvers.diagnostics.outliers import SampleDiagnostics
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.tensor.exclusion import exclude_with

# Gives the label of an index of a mode, counted from 1, or the index itself.
Name: TypeAlias = Callable[[int, int], int | str]
# The largest model value over missing entries may be this many times the largest reading.
EXTRAPOLATED = 3.0
# The sparsity that is proposed where readings do not determine a component.
SMALL_SPARSITY = 0.002


def index_itself(mode: int, index: int) -> int | str:
    """Name an index by its number."""
    return index


def diagnostic_advice(diagnostics: Diagnostics, settings: Settings, name: Name = index_itself) -> list[str]:
    """Return warnings about outlying samples, and about components that the readings do not determine."""
    found = [] if diagnostics.samples is None else list(_outlier_advice(diagnostics.samples, settings, name))
    unobserved = diagnostics.unobserved
    if unobserved is not None and unobserved.ratio > EXTRAPOLATED:
        found.append(_unobserved_advice(diagnostics, unobserved, settings))
    return found


def _outlier_advice(samples: SampleDiagnostics, settings: Settings, name: Name) -> Iterator[str]:
    mode, before = samples.mode, dict(settings.exclude or {})
    if samples.outliers:
        names = [name(mode, outlier.index) for outlier in samples.outliers]
        listed = ", ".join(
            f"{label!r} ({outlier.ratio:.0f} times)" if outlier.ratio < 1e6 else f"{label!r}"
            for label, outlier in zip(names, samples.outliers, strict=True)
        )
        one = len(names) == 1
        yield (
            f"{'index' if one else 'indices'} {listed} of mode {mode} {'does' if one else 'do'} not follow the "
            "components of the others: left out, the error is so many times the median; look at the readings, and fit "
            f"again without {'it' if one else 'them'} by {exclude_with(before, {mode: names})}"
        )
    if samples.single:
        names = list(dict.fromkeys(name(mode, single.index) for single in samples.single))
        listed = ", ".join(f"component {single.component} in {name(mode, single.index)!r}" for single in samples.single)
        one = len(samples.single) == 1
        yield (
            f"{len(samples.single)} of the components {'is' if one else 'are'} in one index of mode {mode} alone, so "
            f"that no other confirms {'it' if one else 'them'}: {listed}; compare the fit without, by "
            f"{exclude_with(before, {mode: names})}"
        )


def _unobserved_advice(diagnostics: Diagnostics, unobserved: UnobservedDiagnostics, settings: Settings) -> str:
    share = diagnostics.components[unobserved.component - 1].unobserved
    if settings.sparsity is None:
        cure = f"give a small sparsity, such as {SMALL_SPARSITY}, instead of beta"
        if settings.penalises_squared:
            cure = f"give penalty 'l1' and {cure[5:]}"
    else:
        cure = f"raise sparsity{'' if settings.sparsity == 'auto' else f' above {settings.sparsity:g}'}"
    return (
        f"component {unobserved.component} is not determined by the readings: where entries are missing, the model "
        f"reaches {unobserved.ratio:.3g} times the largest reading, and {100 * share:.2g} % of the square of this "
        f"component lie there; {cure}, or fewer components"
    )
