"""Output of the commands: plain tables and JSON, the same in a terminal and in a pipe."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from ncp_client.job import Job
from ncp_client.study import Study
from ncp_client.tensor import Tensor

# Columns of a study's table that show a mean, and their formats.
MEAN_COLUMNS = (("objective", ".6g"), ("relative_error", ".6f"), ("components", ".3g"), ("factor_match", ".3f"))

# The number of components that each criterion of a choice names.
CRITERIA = {
    "gain": "gain: more components improve the fit no more than they would on noise",
    "cliff": "cliff: the next component improves the fit far less",
    "agreement": "agreement: largest number at which all random starts find the same components",
    "prediction": "prediction: smallest number that predicts left-out readings as well as any",
    "cold_prediction": "cold_prediction: the same, with fits that started without these readings",
    "halves": "halves: largest number at which two halves of the samples give the same components",
    "bootstrap": "bootstrap: largest number at which resampled samples give the same components",
    "core": "core: largest number with a core consistency above 70 %",
}


def print_json(value: Any) -> None:
    """Print JSON, on one line in a pipe."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False), flush=True)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below their titles, in columns as wide as their longest cell."""
    cells = [titles, *([_escape(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(titles))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_jobs(jobs: Iterable[Job]) -> None:
    """Print one line per job."""
    titles = ("JOB", "STATE", "METHOD", "RANK", "ITERATION", "RELATIVE ERROR", "CREATED", "NAME")
    rows = []
    for job in jobs:
        row, settings = job.progress, job.record["settings"]
        numbers = (row.iteration, f"{row.relative_error:.6f}") if row else ("-", "-")
        created = _format_time(job.record["created_at"])
        state = f"{job.state}, {job.record['paused']['message']}" if job.record.get("paused") else job.state
        rows.append((job.id, state, settings["method"], settings["rank"], *numbers, created, job.name or ""))
    print_table(titles, rows)


def print_tensors(tensors: Iterable[Tensor]) -> None:
    """Print one line per tensor."""
    rows = (
        (
            tensor.id,
            "×".join(map(str, tensor.shape)),
            tensor.record["dtype"],
            tensor.record["nbytes"],
            _format_time(tensor.record["created_at"]),
            tensor.name or "",
        )
        for tensor in tensors
    )
    print_table(("TENSOR", "SHAPE", "TYPE", "BYTES", "CREATED", "NAME"), rows)


def print_record(record: dict[str, Any]) -> None:
    """Print a record, one line per entry that is not null; then the stability of its components, if assessed."""
    rows = [(name, value) for name, value in record.items() if value is not None]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        print(f"{name.ljust(width)}  {_escape(text)}")
    result = record.get("result")
    if result is not None and result.get("stability") is not None:
        print()
        _print_components(result)


def print_diagnostics(found: dict[str, Any]) -> None:
    """Print the core consistency, the model over missing entries, and the outlying samples."""
    core = found["core_consistency"]
    print(f"core consistency: {f'{core:.1f}' if core is not None else found['core_consistency_reason']}")
    unobserved, samples = found.get("unobserved"), found.get("samples")
    if unobserved:
        print(
            f"missing entries: the model reaches {unobserved['ratio']:.3g} times the largest reading, "
            f"in component {unobserved['component']}"
        )
        shares = (f"{number}: {one['unobserved']:.1%}" for number, one in enumerate(found["components"], 1))
        print(f"share of each component there: {', '.join(shares)}")
    if samples:
        outliers = ", ".join(f"{one['index']} ({one['ratio']:.0f} times the median)" for one in samples["outliers"])
        print(f"outlying indices of mode {samples['mode']}: {outliers or samples['reason'] or 'none'}")
        for one in samples["single"]:
            print(f"component {one['component']}: {one['share']:.0%} in index {one['index']} of mode {samples['mode']}")


def print_comparison(found: dict[str, Any]) -> None:
    """Print two jobs side by side: matched components, errors, and the scores of what only one of them has fitted."""

    def digits(value: float | None, format_: str) -> str:
        return "-" if value is None else format(value, format_)

    print_table(
        ("", found["job_id"], found["other_id"]),
        [
            (name.replace("_", " "), digits(found[name], format_), digits(found[f"other_{name}"], format_))
            for name, format_ in (("relative_error", ".6f"), ("core_consistency", ".1f"))
        ],
    )
    print()
    rows = [
        (
            pair["component"] or "-",
            pair["other"] or "-",
            digits(pair["congruence"], ".3f"),
            digits(pair["weight"], ".4g"),
            digits(pair["other_weight"], ".4g"),
        )
        for pair in found["components"]
    ]
    print_table(("COMPONENT", "OF THE OTHER", "CONGRUENCE", "WEIGHT", "OTHER WEIGHT"), rows)
    for one in found["left_out"]:
        print(f"\nscores of {one['label']!r} of mode {one['mode']}, which only one job has fitted")
        scores = zip(one["scores"], one["other_scores"], strict=True)
        named = zip(rows, scores, strict=True)
        print_table(
            ("COMPONENT", "SCORE", "SCORE IN THE OTHER"),
            [(row[0], digits(mine, ".4g"), digits(theirs, ".4g")) for row, (mine, theirs) in named],
        )


def print_result(job: Job) -> None:
    """Print the result of a job: one line per nonzero component, then the numbers."""
    found = job.record["result"]
    if found is None:
        return
    _print_components(found)
    iterations = "1 iteration" if found["iterations"] == 1 else f"{found['iterations']} iterations"
    components, asked = found["nonzero_components"]["all_modes"], job.record["settings"]["rank"]
    print(
        f"{components} of {asked} components, relative error {found['relative_error']:.6f}, "
        f"objective {found['objective']:.6g}, {iterations} in {found['seconds']:.2f} s "
        f"({found['stop_reason']})"
    )
    for warning in found["warnings"]:
        print(f"warning: {_escape(warning)}")


def _print_components(found: dict[str, Any]) -> None:
    """Print the components of a result, the largest first, with the stability of each if that was assessed."""
    weights, stability = found["weights"], found.get("stability") or {}
    total = sum(weights) or 1.0
    largest = sorted((place for place, weight in enumerate(weights) if weight > 0), key=lambda place: -weights[place])
    sure = [name for name in ("replicability", "split_half") if stability.get(name) is not None]
    rows = [
        (
            rank,
            f"{weights[place]:.4g}",
            f"{weights[place] / total:.1%}",
            *("-" if stability[name][place] is None else f"{stability[name][place]:.3f}" for name in sure),
        )
        for rank, place in enumerate(largest, start=1)
    ]
    print_table(("COMPONENT", "WEIGHT", "SHARE", *(name.replace("_", " ").upper() for name in sure)), rows)


def print_studies(studies: Iterable[Study]) -> None:
    """Print one line per study."""
    rows = (
        (
            study.id,
            study.state,
            study.kind,
            f"{study.record['runs']['succeeded']}/{study.record['runs']['total']}",
            _format_time(study.record["created_at"]),
            study.name or "",
        )
        for study in studies
    )
    print_table(("STUDY", "STATE", "KIND", "RUNS", "CREATED", "NAME"), rows)


def print_study(study: Study) -> None:
    """Print the advice of a choice, the components of a stability, or the table of a comparison and its advice."""
    if study.kind == "stability" and study.record["result"] is not None:
        _print_components(study.record["result"])
    advice = study.advice
    if advice is not None:
        count = advice["components"]
        verdict = f"components: {count}" if count is not None else f"no count; suggestion: {advice['suggestion']}"
        print(f"{verdict} (confidence: {advice['confidence']}, range {advice['range'][0]} to {advice['range'][1]})")
        print(_escape(advice["reason"]))
        rows = [(CRITERIA.get(name, name), "-" if k is None else k) for name, k in advice["criteria"].items()]
        print_table(("CRITERION", "COMPONENTS"), rows)
        if advice["sparsity"] is not None:
            print(f"the recommended setting keeps just these with sparsity {advice['sparsity']:.4g}")
        return
    table = study.record["table"]
    if table is None:
        return
    means = (name.replace("_", " ").upper() for name, _ in MEAN_COLUMNS)
    # A column only where rows differ in it.
    penalties = {row["penalty"] for row in table["rows"]} - {None}
    more = [name for name, shown in (("penalty", len(penalties) > 1), ("warned", _any_warned(table))) if shown]
    titles = ("RANK", "METHOD", "WEIGHT", "RUNS", "FAILED", *means, *(name.upper() for name in more), "BEST")
    print_table(titles, (_cell_row(row, more) for row in table["rows"]))
    for note in table["notes"]:
        print(_escape(note))
    for text in dict.fromkeys(text for row in table["rows"] for text in row["warnings"]):
        print(f"warning: {_escape(text)}")
    recommendation = study.recommendation
    if recommendation is not None:
        print(f"\n{recommendation['title']}")
        for sentence in recommendation["sentences"]:
            print(f"- {_escape(sentence)}")
    failed = study.record["error"]
    if failed is not None and study.state == "succeeded":
        print(f"\nthe validation failed: {_escape(failed['message'])} ({_escape(failed['remedy'])})")


def _any_warned(table: dict[str, Any]) -> bool:
    return any(row["warned"] for row in table["rows"])


def _cell_row(row: dict[str, Any], more: Sequence[str]) -> Sequence[object]:
    weight = row["beta"] if row["requested_sparsity"] is None else row["requested_sparsity"]
    shown = [_mean(row[name], digits) for name, digits in MEAN_COLUMNS]
    return (
        row["rank"],
        row["method"],
        f"{weight:g}",
        row["runs"],
        row["failures"],
        *shown,
        *(row[name] or "-" for name in more),
        row["best"] or "-",
    )


def _mean(spread: dict[str, Any] | None, digits: str) -> str:
    return "-" if spread is None or spread["mean"] is None else format(spread["mean"], digits)


def _format_time(moment: str) -> str:
    """Return a time in the local time zone. An age would be wrong where the two clocks differ."""
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M")


def _escape(text: str) -> str:
    """Replace control characters: a name may contain commands for the terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)
