"""True answers: nothing that was accepted is answered as refused, and no repeated submission makes anything twice."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter, create_model

from ncp_client import Client
from sparse_ncp.solvers import settings
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import JobRequest
from sparse_ncp.worker.records.jobs import digest_of
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.study_contract import StudyRequest
from tests.support.api import Api, http_client, npy, planted, refused, running_api, upload
from tests.support.machine.proxy import CuttingProxy, cutting_proxy
from tests.support.stack import embedded_redis, locked_redis, wait_for

ANSWER_SECONDS = 0.3
# Longer than one call waits, and longer than a change is repeated.
HICCUP, OUTAGE = 800, 4000
RECORDED = Path(__file__).parents[1] / "contracts" / "recorded" / "digests-0.1.0.json"
STUDIES: TypeAdapter[Any] = TypeAdapter(StudyRequest)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Configuration, Api]]:
    """A server that waits briefly for Redis, whose writes a test can pause."""
    folder = tmp_path_factory.mktemp("slow")
    with (
        embedded_redis(folder, redis_answer_seconds=ANSWER_SECONDS, min_free_bytes=0) as made,
        running_api(made) as api,
    ):
        yield made, api


@pytest.fixture
def caller(slow: tuple[Configuration, Api]) -> Iterator[httpx.Client]:
    with http_client(slow[1].address) as made:
        yield made
    with connect(slow[0]) as client:
        client.client_unpause()


def pause_writes(configuration: Configuration, milliseconds: int) -> None:
    """Let Redis keep every write waiting for so long, and make it afterwards. Reads go on."""
    with connect(configuration) as client:
        client.client_pause(milliseconds, all=False)


def bodies(tensor: str) -> dict[str, dict[str, Any]]:
    return {
        "jobs": {"tensor_id": tensor, "rank": 2, "method": "hals"},
        "studies": {"kind": "compare", "tensor_id": tensor, "ranks": [2], "methods": ["hals"], "repeats": 2},
    }


@pytest.mark.parametrize("kind", ["jobs", "studies"])
def test_a_submission_that_redis_makes_late_is_answered_as_accepted(
    kind: str, slow: tuple[Configuration, Api], caller: httpx.Client
) -> None:
    body = bodies(upload(caller, planted(4, 5, 6))["id"])[kind]
    before = len(caller.get(f"/v1/{kind}").json()["items"])
    pause_writes(slow[0], HICCUP)
    answer = caller.post(f"/v1/{kind}", json=body)
    assert answer.status_code == 202, answer.text
    found = caller.get(f"/v1/{kind}").json()["items"]
    assert len(found) == before + 1
    assert found[0]["id"] == answer.json()["id"]


@contextmanager
def lossy_redis(folder: Path) -> Iterator[tuple[Configuration, Configuration, CuttingProxy]]:
    """Yield the configurations of a Redis behind a proxy and of the same Redis without it, and the proxy."""
    with locked_redis(folder / "redis") as (address, _):
        place = address.rpartition("@")[2].partition("/")[0]
        with cutting_proxy(f"http://{place}") as proxy:
            direct = Configuration(data=folder / "data", redis_url=address, redis_answer_seconds=1.0, min_free_bytes=0)
            behind = address.replace(place, proxy.address.removeprefix("http://"))
            yield direct.model_copy(update={"redis_url": behind}), direct, proxy


@pytest.mark.parametrize("kind", ["jobs", "studies"])
def test_an_answer_that_cannot_be_known_says_where_to_look(kind: str, tmp_path: Path) -> None:
    """Redis makes what is submitted, but no answer arrives any more."""
    with (
        lossy_redis(tmp_path) as (behind, direct, proxy),
        running_api(behind) as served,
        http_client(served.address) as caller,
        connect(direct) as redis,
        ThreadPoolExecutor() as pool,
    ):
        body = bodies(upload(caller, planted(4, 5, 6))["id"])[kind]
        assert caller.post(f"/v1/{kind}", json=body).status_code == 202  # now Redis knows the script
        once = {"Idempotency-Key": "once"}
        pause_writes(direct, OUTAGE)
        sent = pool.submit(caller.post, f"/v1/{kind}", json=body, headers=once)
        wait_for(lambda: any("b" in client["flags"] for client in redis.client_list()), what="the submission at Redis")
        proxy.allowed = 0
        redis.client_unpause()
        answer = sent.result()
        refused(answer, 504, "outcome-unknown")
        assert int(answer.headers["Retry-After"]) > 0
        proxy.allowed = None
        path = answer.headers["Location"]
        assert wait_for(lambda: caller.get(path).status_code == 200, what="what was submitted")
        again = caller.post(f"/v1/{kind}", json=body, headers=once)
        assert again.headers["Location"] == path
        assert again.headers["Idempotent-Replayed"] == "true"
        assert len(caller.get(f"/v1/{kind}").json()["items"]) == 2


def test_an_upload_whose_record_is_made_late_is_answered_as_stored(
    slow: tuple[Configuration, Api], caller: httpx.Client
) -> None:
    content = npy(planted(40, 50, 60))

    def parts() -> Iterator[bytes]:
        yield content[:100_000]
        wait_for(lambda: list((slow[0].data / "uploads").iterdir()), what="the upload to begin")
        pause_writes(slow[0], HICCUP)
        yield content[100_000:]

    answer = caller.post("/v1/tensors", content=parts(), headers={"Content-Length": str(len(content))})
    assert answer.status_code == 201, answer.text
    assert caller.get(f"/v1/tensors/{answer.json()['id']}/content").content == content


def test_a_change_of_a_record_whose_answer_is_lost_names_the_record(
    slow: tuple[Configuration, Api], caller: httpx.Client
) -> None:
    tensor = upload(caller, planted(4, 5, 6))["id"]
    pause_writes(slow[0], HICCUP)
    answer = caller.patch(f"/v1/tensors/{tensor}", json={"name": "late"})
    refused(answer, 504, "outcome-unknown")
    assert answer.headers["Location"] == f"/v1/tensors/{tensor}"


def test_the_client_repeats_a_submission_until_it_is_known(
    slow: tuple[Configuration, Api], caller: httpx.Client
) -> None:
    with Client(slow[1].address, patience_seconds=60) as client:
        tensor = client.upload(planted(4, 5, 7))
        before = {job["id"] for job in caller.get("/v1/jobs").json()["items"]}
        pause_writes(slow[0], OUTAGE)
        job = client.submit(tensor, rank=2, method="hals")
        assert {found["id"] for found in caller.get("/v1/jobs").json()["items"]} - before == {job.id}


# Digests over upgrades


def parsed(kind: str, body: dict[str, Any]) -> BaseModel:
    found: BaseModel = JobRequest.model_validate(body) if kind == "job" else STUDIES.validate_python(body)
    return found


def are_same(one: str, other: str) -> bool:
    return not set(one.split()).isdisjoint(other.split())


@pytest.mark.parametrize("recorded", json.loads(RECORDED.read_text()), ids=lambda recorded: recorded["what"])
def test_a_request_has_the_digests_that_the_first_release_gave_it(recorded: dict[str, Any]) -> None:
    """A key that was used before an upgrade is known after it: no later release may lose one of these digests."""
    assert are_same(digest_of(parsed(recorded["kind"], recorded["request"])), recorded["digest"])


def test_later_fields_and_defaults_do_not_change_what_a_request_means(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"tensor_id": "0123456789abcdef", "rank": 3, "method": "hals", "seed": 0}
    now = digest_of(JobRequest.model_validate(body))
    further = create_model("Further", __base__=JobRequest, colour=(str, "blue"))
    assert digest_of(further.model_validate(body)) == now
    other_default = create_model("OtherDefault", __base__=JobRequest, seed=(int, 7))
    assert are_same(digest_of(other_default.model_validate(body)), now)
    preset = {"tensor_id": "0123456789abcdef", "rank": 3, "preset": "recommended"}
    before = digest_of(JobRequest.model_validate(preset))
    monkeypatch.setitem(settings.RECOMMENDED, "method", "hals")
    assert are_same(digest_of(JobRequest.model_validate(preset)), before)
    assert not are_same(before, now)
    assert not are_same(digest_of(JobRequest.model_validate({**body, "seed": 1})), now)
