"""After an upload, zeros that look like missing readings are found and shown in the record of the tensor."""

from contextlib import closing

import httpx
import numpy as np
from numpy.typing import NDArray

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.execution.inspections import inspect_tensors
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.local import LocalStore
from tests.support.api import planted, upload


def cut_out(*shape: int, seed: int) -> NDArray[np.float64]:
    """Return a planted tensor in which a block of modes 2 and 3 is zero in every sample."""
    tensor = planted(*shape, seed=seed) + 1
    tensor[:, 2:6, 3:8] = 0
    return np.asarray(tensor)


def inspect(configuration: Configuration) -> None:
    """Do what a worker does every few seconds."""
    with closing(Records.of(configuration)) as records:
        inspect_tensors(records, LocalStore(configuration.data))


def test_the_record_says_which_zeros_look_missing(client: httpx.Client, configuration: Configuration) -> None:
    id = upload(client, cut_out(9, 12, 10, seed=50))["id"]
    assert client.get(f"/v1/tensors/{id}").json()["zeros"] is None
    inspect(configuration)
    [found] = client.get(f"/v1/tensors/{id}").json()["zeros"]
    assert found["look_missing"]
    assert (found["mode"], found["entries"]) == (1, 9 * 4 * 5)
    assert found["map"]["modes"] == [2, 3]
    drawn = np.array(found["map"]["rows"])
    assert drawn.shape == (12, 10)
    assert drawn[2:6, 3:8].all()
    assert drawn.sum() == 20


def test_a_tensor_without_such_zeros_has_an_empty_report(client: httpx.Client, configuration: Configuration) -> None:
    plain, mask = planted(6, 5, 4, seed=51) + 1, planted(6, 5, 4, seed=52) > 0.5
    records = [upload(client, tensor) for tensor in (plain, mask)]
    inspect(configuration)
    assert [client.get(f"/v1/tensors/{record['id']}").json()["zeros"] for record in records] == [[], []]


def test_equal_bytes_are_inspected_once_for_all_their_owners(
    client: httpx.Client, other_client: httpx.Client, configuration: Configuration
) -> None:
    tensor = cut_out(8, 9, 11, seed=53)
    first = upload(client, tensor)["id"]
    inspect(configuration)
    second = upload(other_client, tensor)["id"]
    zeros = [lab.get(f"/v1/tensors/{id}").json()["zeros"] for lab, id in ((client, first), (other_client, second))]
    assert zeros[0] == zeros[1] is not None


def test_a_tensor_that_is_deleted_before_its_inspection_leaves_nothing(
    client: httpx.Client, configuration: Configuration
) -> None:
    record = upload(client, cut_out(8, 9, 12, seed=54))
    client.delete(f"/v1/tensors/{record['id']}")
    inspect(configuration)
    store = LocalStore(configuration.data)
    assert store.zeros(record["sha256"]) is None
    assert not (store.root / "tensors" / record["sha256"]).exists()
