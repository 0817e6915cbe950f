"""Record the records of a small server, for the tests that a later release still reads them.

python -m tests.contracts.record_redis tests/contracts/recorded/records-VERSION.json
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import TERMINAL, Axis, JobError
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.studies import StudyOperations
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.store.local import LocalStore
from sparse_ncp.worker.study_contract import StudyRequest
from tests.support.api import planted
from tests.support.jobs import put, request
from tests.support.stack import embedded_redis, wait_for, worker

OWNER = "ann"
# What only a live server has.
PASSING = (keys.BROKER, keys.WORKERS, keys.CLEANUP_TURN, keys.PREPARING)


def dump(client: Any) -> dict[str, dict[str, Any]]:
    """Return every lasting key of Redis with its type and value."""
    names = sorted(name for name in client.scan_iter(match=keys.PREFIX + "*") if not name.startswith(PASSING))
    return {name: {"type": client.type(name), "value": _value(client, name)} for name in names}


def _value(client: Any, name: str) -> Any:
    read: dict[str, Callable[[], Any]] = {
        "string": lambda: client.get(name),
        "hash": lambda: client.hgetall(name),
        "list": lambda: client.lrange(name, 0, -1),
        "set": lambda: sorted(client.smembers(name)),
        "zset": lambda: dict(client.zrange(name, 0, -1, withscores=True)),
        "stream": lambda: client.xrange(name),
    }
    return read[client.type(name)]()


def load(client: Any, recorded: dict[str, dict[str, Any]]) -> None:
    """Write what `dump` returned to an empty Redis."""
    for name, one in recorded.items():
        kind, value = one["type"], one["value"]
        if kind == "string":
            client.set(name, value)
        elif kind == "hash":
            client.hset(name, mapping=value)
        elif kind == "list":
            client.rpush(name, *value)
        elif kind == "set":
            client.sadd(name, *value)
        elif kind == "zset":
            client.zadd(name, value)
        else:
            for entry_id, fields in value:
                client.xadd(name, fields, id=entry_id)


def fill(configuration: Configuration) -> dict[str, Any]:
    """Make a tensor, a job in each lasting state, a comparison and a choice; return what the records say of them."""
    records, store = ExecutionRecords.of(configuration), LocalStore(configuration.data)
    jobs, studies = JobOperations(records, store, configuration), StudyOperations(records, store, configuration)
    tensor = put(records, store, planted(10, 9, 8, rank=2), OWNER)
    axes = [Axis(name=name, unit="nm", values=list(range(n))) for name, n in zip("abc", tensor.shape, strict=True)]
    records.tensors.set_axes(OWNER, tensor.id, tuple(axes))
    short = {"stop": {"max_iterations": 3, "tolerance": 0}}
    compare = {
        "ranks": [1, 2, 3],
        "methods": ["hals"],
        "repeats": 2,
        "validate": {"split_half": {"mode": 1, "parts": 2}},
    }
    asked = [
        {"kind": "compare", "tensor_id": tensor.id, **compare, **short},
        {"kind": "choose", "tensor_id": tensor.id, "rank": 3, "seeds": 2},
    ]
    with worker(configuration):
        succeeded = jobs.submit(OWNER, request(tensor, name="first", beta=0.1, **short), key="once").job.id
        made = [studies.submit(OWNER, TypeAdapter(StudyRequest).validate_python(one))[0].id for one in asked]
        wait_for(lambda: records.jobs.status(succeeded).settled, 60, "the job")  # type: ignore[union-attr]
        for id in made:
            wait_for(lambda id=id: records.studies.find(id).state in TERMINAL, 120, id)  # type: ignore[misc]
    failed = jobs.submit(OWNER, request(tensor, seed=1)).job.id
    claim = records.claims.claim("w")
    assert claim is not None
    records.claims.fail(claim, JobError(kind="memory", message="the job needs more memory", remedy="lower the rank"))
    queued = jobs.submit(OWNER, request(tensor, seed=2, priority=3, initial={"job_id": succeeded})).job.id
    jobs.settle(failed)
    return {
        "tensor": records.tensors.get_labelled(OWNER, tensor.id).model_dump(mode="json"),
        **{
            name: records.jobs.get(OWNER, id).model_dump(mode="json")
            for name, id in (("succeeded", succeeded), ("failed", failed), ("queued", queued))
        },
        **{
            name: studies.get(OWNER, id).model_dump(mode="json")
            for name, id in zip(("compare", "choose"), made, strict=True)
        },
    }


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, embedded_redis(Path(folder)) as configuration:
        expected = fill(configuration)
        api_keys = ApiKeys(configuration.data)
        secret = api_keys.create(OWNER, limits=Limits(live_jobs=7))
        files = {path.name: path.read_text() for path in (configuration.data / "keys").glob("*.json")}
        with connect(configuration) as client:
            recorded = {"expected": expected, "secret": secret, "api_keys": files, "redis": dump(client)}
        target.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
