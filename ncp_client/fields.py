"""Fields of jobs and studies: keyword arguments of `Client.submit` and `Client.study`, and options of `ncp`."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypedDict

RECOMMENDED = "recommended"


class ArrayOfNumbers(Protocol):
    """A numpy array; a protocol, so that numpy is not imported."""

    def tolist(self) -> Any: ...


class Referable(Protocol):
    """A job or a tensor of the client."""

    @property
    def reference(self) -> dict[str, str]: ...


PerMode: TypeAlias = float | Sequence[float] | ArrayOfNumbers
Reference: TypeAlias = Referable | str | Mapping[str, Any]
# Fields that refer to a job or a tensor, and the key under which an id is sent.
REFERENCES = {"initial": "job_id", "mask": "tensor_id"}


class StopFields(TypedDict, total=False):
    """Stopping rule of a run."""

    criterion: Annotated[
        Literal["relative_error", "objective", "relative_objective"],
        "quantity whose change is compared with the tolerance",
    ]
    tolerance: Annotated[float, "stop when the change is below this value"]
    patience: Annotated[int, "for this many consecutive iterations"]
    max_iterations: Annotated[int, "stop after this many iterations"]
    max_seconds: Annotated[float | None, "stop after this much computing time"]


class RunFields(TypedDict, total=False):
    """Fields of a run that jobs and studies share."""

    alpha: Annotated[PerMode, "weight of the squared norm, for all modes or one per mode"]
    penalty: Annotated[Literal["l1", "l1_squared"] | None, "which sparsity penalty"]
    init: Annotated[Literal["random", "random_scaled", "nndsvd"], "how the starting factors are made"]
    initial: Annotated[Reference | None, "start from the factors of this job"]
    missing: Annotated[Literal["refuse", "nan"], "nan: NaN marks an entry that was not observed"]
    negative: Annotated[Literal["refuse", "keep"], "keep: fit negative entries as they are"]
    zeros: Annotated[Literal["readings", "missing"], "missing: leave out zeros that look like missing readings"]
    mask: Annotated[Reference | None, "a boolean tensor: true where an entry was observed"]
    fixed: Annotated[Mapping[str, Any] | None, 'keep these factors of a job: {"job_id": …, "modes": [2, 3]}']
    exclude: Annotated[
        Mapping[str, Sequence[int | str]] | Mapping[int, Sequence[int | str]] | None,
        'leave indices (from 0) or labels out of the fit, by mode: {"1": [2, 5]}, or 1:2,5',
    ]
    samples_mode: Annotated[int, "the mode in which outlying samples are looked for"]
    diagnose: Annotated[bool, "compute diagnostics of the model at the end of the run"]
    precision: Annotated[Literal["float32", "float64"] | None, "precision of the products with the tensor"]
    rescale: Annotated[bool, "balance the scale of the components over the modes"]
    inner_passes: Annotated[int, "updates of a mode per sweep"]
    normalise: Annotated[bool | None, "scale columns to norm 1 in all modes but the last"]
    delta_omega: Annotated[float | None, "bound on the extrapolation weight of apg"]
    extrapolate: Annotated[bool | None, "extrapolate after each sweep"]
    regrow: Annotated[bool | None, "restore lost components where that lowers the objective"]
    starts: Annotated[int | None, "number of starts to try"]
    starts_mode: Annotated[Literal["best", "all"], "which starts are run to the end"]
    accelerate: Annotated[
        Literal["auto", "none", "compress", "float32"],
        "sweep over a compressed tensor or one in single precision first",
    ]
    sparsity_threshold: Annotated[float, "entries below this value count as zero"]
    stability: Annotated[bool, "refit the result to resampled samples, to assess how reliable each component is"]
    resamples: Annotated[int, "number of bootstrap resamples for stability"]


class OwnJobFields(TypedDict, total=False):
    """Fields that only a job has, or that have another meaning in a study."""

    method: Annotated[str, "name of a method, see ncp methods; without one the recommended settings are used"]
    preset: Annotated[Literal["recommended"] | None, "recommended: fill in every field that is left out"]
    sparsity: Annotated[
        float | Literal["auto"] | None,
        "drop components weaker than this fraction of the tensor's norm; auto: twice the estimated noise level",
    ]
    beta: Annotated[PerMode, "weight of the sparsity penalty, for all modes or one per mode"]
    seed: Annotated[int, "seed of the starting factors"]
    stop: Annotated[StopFields, "when the run ends"]
    name: Annotated[str | None, "name shown in lists"]
    priority: Annotated[int, "-10 to 10, higher first among your own jobs"]


class JobFields(OwnJobFields, RunFields, total=False):
    """All fields of a job except tensor and rank. The server fills in those that are left out."""


class OwnStudyFields(TypedDict, total=False):
    """Fields that only a study has, or that have another meaning in a job."""

    ranks: Annotated[Sequence[int], "compare: numbers of components"]
    methods: Annotated[Sequence[str], "compare: names of methods"]
    betas: Annotated[Sequence[float] | None, "compare: weights of the sparsity penalty"]
    sparsities: Annotated[Sequence[float] | None, "compare: relative sparsities, instead of betas"]
    repeats: Annotated[int, "compare: number of runs of each setting"]
    reference: Annotated[Mapping[str, Any] | None, 'compare: the true factor, {"tensor_id": …, "mode": 1}']
    job_id: Annotated[str, "stability: job whose model is assessed"]
    rank: Annotated[int, "choose: largest number of components to consider"]
    seeds: Annotated[int, "choose: number of random starts"]
    noise: Annotated[Literal["auto", "gaussian", "clipped", "counts"], "choose: kind of noise"]
    seed: Annotated[int, "seed of the first start"]
    validate: Annotated[Mapping[str, Any], "validations to run: split_half, holdout"]
    name: Annotated[str | None, "name shown in lists"]
    priority: Annotated[int, "-10 to 10, higher first among your own jobs"]
    stop: Annotated[StopFields, "when a run ends; choose: only max_seconds"]
    preset: Annotated[Literal["recommended"] | None, "compare: recommended fills in every field that is left out"]


class StudyFields(OwnStudyFields, RunFields, total=False):
    """All fields of a study except tensor and kind."""


def study_body(tensor_id: str, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request that submits a study."""
    return _body({"kind": kind, "tensor_id": tensor_id, **fields})


def job_body(tensor_id: str, rank: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request that submits a job, with the recommended settings unless a method is given."""
    body = {"tensor_id": tensor_id, "rank": rank, **fields}
    if "method" not in fields and "preset" not in fields:
        body["preset"] = RECOMMENDED
    return _body(body)


def _body(body: dict[str, Any]) -> dict[str, Any]:
    for name, key in REFERENCES.items():
        if isinstance(body.get(name), str):
            body[name] = {key: body[name]}
    return {name: _as_json(name, value) for name, value in body.items()}


def _as_json(name: str, value: Any) -> Any:
    """Return a value as JSON: jobs and tensors as references, arrays as lists."""
    value = getattr(value, "reference", value)
    if isinstance(value, Mapping):
        return {key: _as_json(f"{name}.{key}", entry) for key, entry in value.items()}
    value = value.tolist() if hasattr(value, "tolist") else value
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {value!r} cannot be sent ({error})") from error
    return value
