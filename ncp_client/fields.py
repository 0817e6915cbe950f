"""Every field of jobs and studies, in one place: what `submit` and `study` take by name, and the options of `ncp`."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypedDict

RECOMMENDED = "recommended"


class ArrayOfNumbers(Protocol):
    """A numpy array, which need not be loaded to say so."""

    def tolist(self) -> Any: ...


class Referable(Protocol):
    """A job or a tensor of this client."""

    @property
    def reference(self) -> dict[str, str]: ...


PerMode: TypeAlias = float | Sequence[float] | ArrayOfNumbers
Reference: TypeAlias = Referable | str | Mapping[str, Any]
# Fields that name a job or a tensor, and what an id alone stands for.
REFERENCES = {"initial": "job_id", "mask": "tensor_id"}


class StopFields(TypedDict, total=False):
    """When a run ends."""

    criterion: Annotated[Literal["relative_error", "objective", "relative_objective"], "whose change counts"]
    tolerance: Annotated[float, "stop when the change is below"]
    patience: Annotated[int, "on that many consecutive iterations"]
    max_iterations: Annotated[int, "stop after that many iterations"]
    max_seconds: Annotated[float | None, "stop after that much computing time"]


class RunFields(TypedDict, total=False):
    """What may be asked of every run, alone or in a comparison."""

    alpha: Annotated[PerMode, "weight of the squared norm, for all modes or one per mode"]
    penalty: Annotated[Literal["l1", "l1_squared"] | None, "which sparsity penalty"]
    init: Annotated[Literal["random", "random_scaled", "nndsvd"], "how the starting factors are made"]
    initial: Annotated[Reference | None, "start from the factors of this job"]
    missing: Annotated[Literal["refuse", "nan"], "nan: NaN stands for an entry that was not observed"]
    negative: Annotated[Literal["refuse", "keep"], "keep: negative entries are fitted as they are"]
    mask: Annotated[Reference | None, "a tensor of booleans: true where an entry was observed"]
    fixed: Annotated[Mapping[str, Any] | None, 'keep factors of a job: {"job_id": …, "modes": [2, 3]}']
    diagnose: Annotated[bool, "tell where the model misses the tensor, at the end of a run"]
    precision: Annotated[Literal["float32", "float64"] | None, "of the products with the tensor"]
    rescale: Annotated[bool, "balance the scale of components over the modes"]
    inner_passes: Annotated[int, "updates of a mode per sweep"]
    normalise: Annotated[bool | None, "unit columns in all modes but the last"]
    delta_omega: Annotated[float | None, "bound on the extrapolation weight"]
    extrapolate: Annotated[bool | None, "go beyond each sweep in its direction"]
    regrow: Annotated[bool | None, "put lost components back where that lowers the objective"]
    starts: Annotated[int | None, "how many starts are tried"]
    starts_mode: Annotated[Literal["best", "all"], "which starts go to the end"]
    accelerate: Annotated[
        Literal["auto", "none", "compress", "float32"], "sweep over a compressed or a single precision tensor first"
    ]
    sparsity_threshold: Annotated[float, "entries below count as zero"]


class OwnJobFields(TypedDict, total=False):
    """What is asked of a job in another way than of a study."""

    method: Annotated[str, "one of those that ncp methods lists; without one the recommended setting is used"]
    preset: Annotated[Literal["recommended"] | None, "recommended: fills every field that is left out"]
    sparsity: Annotated[float | Literal["auto"] | None, "components below this share of the tensor's norm go"]
    beta: Annotated[PerMode, "weight of the sparsity penalty, for all modes or one per mode"]
    seed: Annotated[int, "of the starting factors"]
    stop: Annotated[StopFields, "when the run ends"]
    name: Annotated[str | None, "for people"]
    priority: Annotated[int, "-10 to 10, higher first among your own jobs"]


class JobFields(OwnJobFields, RunFields, total=False):
    """What may be asked of a run, besides tensor and rank. What is left out is the server's to fill."""


class OwnStudyFields(TypedDict, total=False):
    """What is asked of a study in another way than of a job."""

    ranks: Annotated[Sequence[int], "compare: numbers of components"]
    methods: Annotated[Sequence[str], "compare: names of methods"]
    betas: Annotated[Sequence[float] | None, "compare: weights of the sparsity penalty"]
    sparsities: Annotated[Sequence[float] | None, "compare: instead of betas, without units"]
    repeats: Annotated[int, "compare: runs of each cell"]
    reference: Annotated[Mapping[str, Any] | None, 'compare: the true factor, {"tensor_id": …, "mode": 1}']
    rank: Annotated[int, "choose: components of the overfit"]
    seeds: Annotated[int, "choose: random starts"]
    noise: Annotated[Literal["auto", "gaussian", "clipped", "counts"], "choose: what the noise is like"]
    seed: Annotated[int, "of the first start"]
    validate: Annotated[Mapping[str, Any], "split_half and holdout"]
    name: Annotated[str | None, "for people"]
    priority: Annotated[int, "-10 to 10, higher first among your own jobs"]
    stop: Annotated[StopFields, "when a run ends; of a choice, max_seconds alone"]
    preset: Annotated[Literal["recommended"] | None, "compare, as all that follow: fills what is left out"]


class StudyFields(OwnStudyFields, RunFields, total=False):
    """What may be asked of a study, besides tensor and kind. Of a job's fields, all but rank, method and weight."""


def study_body(tensor_id: str, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of POST /v1/studies."""
    return _body({"kind": kind, "tensor_id": tensor_id, **fields})


def job_body(tensor_id: str, rank: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of POST /v1/jobs. Without a method or a preset it asks for the recommended setting."""
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
    """The value as the server takes it: jobs and tensors by their ids, arrays as lists."""
    value = getattr(value, "reference", value)
    if isinstance(value, Mapping):
        return {key: _as_json(f"{name}.{key}", entry) for key, entry in value.items()}
    value = value.tolist() if hasattr(value, "tolist") else value
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {value!r} cannot be sent ({error})") from error
    return value
