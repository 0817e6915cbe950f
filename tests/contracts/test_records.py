"""Records of jobs, studies, tensors and API keys that earlier releases wrote, and those of a later release."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import LaterRecord, NotFound, TooManyRuns
from sparse_ncp.worker.operations.studies import StudyOperations
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.store.local import LocalStore
from sparse_ncp.worker.study_contract import StudyRequest
from tests.contracts.record_redis import OWNER, load
from tests.support.api import http_client, npy, planted, refused, running_api
from tests.support.stack import embedded_redis, wait_for, worker

RECORDED = sorted((Path(__file__).parent / "recorded").glob("records-*.json"))
JOBS, STUDIES = ("succeeded", "failed", "queued"), ("compare", "choose")


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    with embedded_redis(tmp_path_factory.mktemp("redis")) as configuration:
        yield configuration


@pytest.fixture(params=RECORDED, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.param.read_text())
    return found


@pytest.fixture
def configuration(shared_redis: Configuration, recorded: dict[str, Any], tmp_path: Path) -> Configuration:
    """A server with nothing but the recorded keys."""
    with connect(shared_redis) as client:
        client.flushall()
        load(client, recorded["redis"])
    return shared_redis.model_copy(update={"data": tmp_path})


@pytest.fixture
def records(configuration: Configuration) -> ExecutionRecords:
    return ExecutionRecords.of(configuration)


def assert_kept(found: Any, expected: Any) -> None:
    """Every recorded field has its value; a later release may have more fields."""
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        for name, value in expected.items():
            assert_kept(found[name], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, value in zip(found, expected, strict=True):
            assert_kept(one, value)
    else:
        assert found == expected


def test_the_records_of_an_earlier_release_are_read(
    configuration: Configuration, records: ExecutionRecords, recorded: dict[str, Any]
) -> None:
    expected = recorded["expected"]
    tensor = records.tensors.get_labelled(OWNER, expected["tensor"]["id"])
    assert_kept(tensor.model_dump(mode="json"), expected["tensor"])
    for name in JOBS:
        assert_kept(records.jobs.get(OWNER, expected[name]["id"]).model_dump(mode="json"), expected[name])
    studies = StudyOperations(records, LocalStore(configuration.data), configuration)
    for name in STUDIES:
        study = studies.get(OWNER, expected[name]["id"])
        assert_kept(study.model_dump(mode="json"), expected[name])
        assert studies.events_after(study.id)[-1].kind == "end"
    assert expected["compare"]["recommendation"]["rank"] in (1, 2, 3)
    assert expected["choose"]["advice"]["suggestion"] >= 1


def test_the_api_answers_from_the_records_of_an_earlier_release(
    configuration: Configuration, recorded: dict[str, Any]
) -> None:
    expected = recorded["expected"]
    with running_api(configuration) as api, http_client(api.address, OWNER) as client:
        for name, path in (
            ("tensor", "tensors"),
            *((job, "jobs") for job in JOBS),
            *((one, "studies") for one in STUDIES),
        ):
            found = client.get(f"/v1/{path}/{expected[name]['id']}")
            assert found.status_code == 200, found.text
            state = "sha256" if name == "tensor" else "state"
            assert found.json()[state] == expected[name][state]
        assert {job["id"] for job in client.get("/v1/jobs").json()["items"]} >= {expected[name]["id"] for name in JOBS}
        assert len(client.get("/v1/studies").json()["items"]) == len(STUDIES)


def test_a_job_that_an_earlier_release_queued_is_run(records: ExecutionRecords, recorded: dict[str, Any]) -> None:
    expected = recorded["expected"]["queued"]
    claim = records.claims.claim("w")
    assert claim is not None
    assert claim.job_id == expected["id"]
    assert claim.initial_job_id == recorded["expected"]["succeeded"]["id"]
    assert_kept(claim.settings.model_dump(mode="json"), expected["settings"])
    assert records.jobs.cancel(OWNER, claim.job_id).cancel_requested
    assert records.claims.cancel(claim, None)


def test_what_an_earlier_release_recorded_is_deleted(records: ExecutionRecords, recorded: dict[str, Any]) -> None:
    expected = recorded["expected"]
    records.jobs.cancel(OWNER, expected["queued"]["id"])
    for name in STUDIES:
        records.studies.delete(OWNER, expected[name]["id"])
        while records.studies.erase(expected[name]["id"]):
            pass
    for name in JOBS:
        records.jobs.delete(OWNER, expected[name]["id"])
    records.tensors.delete(OWNER, expected["tensor"]["id"])
    usage = records.stats.usage(OWNER)
    assert (usage.stored_bytes, usage.jobs.succeeded, usage.jobs.failed, usage.jobs.cancelled) == (0, 0, 0, 0)


def test_the_api_keys_of_an_earlier_release_are_accepted(recorded: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o700)
    for name, content in recorded["api_keys"].items():
        (tmp_path / "keys" / name).write_text(content)
    key = ApiKeys(tmp_path).find(recorded["secret"])
    assert key is not None
    assert (key.name, key.limits.live_jobs) == (OWNER, 7)


def test_the_records_of_a_later_release_are_refused_and_left_alone(
    configuration: Configuration, records: ExecutionRecords, recorded: dict[str, Any]
) -> None:
    """After a downgrade, or while servers of two releases share a Redis. Its queued jobs wait for a later worker."""
    expected = recorded["expected"]
    later = {keys.job(expected[name]["id"]) for name in ("failed", "queued")} | {keys.study(expected["choose"]["id"])}
    with connect(configuration) as client:
        for name in later:
            client.hset(name, "version", 999)
        assert records.claims.claim("w") is None
        with running_api(configuration) as api, http_client(api.address, OWNER) as http:
            listed = {job["id"] for job in http.get("/v1/jobs").json()["items"]}
            assert expected["succeeded"]["id"] in listed
            assert expected["queued"]["id"] not in listed
            assert [study["id"] for study in http.get("/v1/studies").json()["items"]] == [expected["compare"]["id"]]
            refused(http.get(f"/v1/jobs/{expected['failed']['id']}"), 409, "later-release")
            refused(http.get(f"/v1/studies/{expected['choose']['id']}"), 409, "later-release")
        with pytest.raises(LaterRecord, match="later release"):
            records.jobs.find(expected["queued"]["id"])
        for name in later:
            client.hset(name, "version", 1)
    claim = records.claims.claim("w")
    assert claim is not None
    assert claim.job_id == expected["queued"]["id"]


def test_a_study_that_was_recorded_without_a_plan_goes_on_and_ends(shared_redis: Configuration, tmp_path: Path) -> None:
    """Recorded by the commit before there were plans: all seven runs have records, one has failed, one is running."""
    recorded = json.loads((RECORDED[0].parent / "study-without-plan.json").read_text())
    configuration = shared_redis.model_copy(update={"data": tmp_path})
    records, store = ExecutionRecords.of(configuration), LocalStore(tmp_path)
    with connect(shared_redis) as client:
        client.flushall()
        load(client, recorded["redis"])
    with store.upload() as content:
        content.write(npy(planted(10, 9, 8, rank=2)))
        content.keep()
    limits = Limits(live_runs=6)
    study = records.studies.find(recorded["study"])
    assert (study.runs.queued, study.runs.running, study.runs.failed) == (4, 1, 1)
    assert len(records.jobs.list(OWNER, study_id=study.id).items) == 6
    studies = StudyOperations(records, store, configuration)
    asked = TypeAdapter(StudyRequest).validate_python(recorded["request"])
    with pytest.raises(TooManyRuns):
        studies.submit(OWNER, asked, limits=limits)
    with worker(configuration):
        wait_for(lambda: records.studies.find(study.id).state == "succeeded", 60, "the study")
    assert records.studies.find(study.id).runs.succeeded == 5
    studies.submit(OWNER, asked.model_copy(update={"repeats": 2}), limits=limits)
    studies.delete(OWNER, study.id)
    with pytest.raises(NotFound):
        records.studies.find(study.id)
    assert records.stats.usage(OWNER).jobs.succeeded == 0
