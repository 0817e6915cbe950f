"""Masks and tensors that leave nothing to read, altogether or of an index, are refused at submission."""

from typing import Literal

import httpx
import numpy as np
import pytest

from tests.api.test_real_data import refused_fields, with_gaps
from tests.support.api import npy, planted, refused, submit, upload

MOST_SEARCHED = "sparse_ncp.worker.operations.missing_entries.MOST_SEARCHED"


def test_what_leaves_no_reading_at_all_is_refused(client: httpx.Client) -> None:
    nothing = client.post("/v1/tensors", content=npy(np.zeros((6, 5, 4), bool)))
    assert "all entries are zero" in refused(nothing, 422)["detail"]
    X = with_gaps(6, 5, 4)
    X[4] = np.nan
    tensor, only_gaps = upload(client, X)["id"], upload(client, np.isnan(X))["id"]
    wrong = refused_fields(client, tensor, missing="nan", mask={"tensor_id": only_gaps})
    assert wrong["mask.tensor_id"]["problem"] == "is true only where entries are NaN or excluded"
    first = upload(client, np.arange(6).reshape(6, 1, 1) < 2)["id"]
    wrong = refused_fields(client, tensor, missing="nan", mask={"tensor_id": first}, exclude={"1": [0, 1]})
    assert wrong["mask.tensor_id"]["problem"] == "is true only where entries are NaN or excluded"
    X[:] = np.where(np.arange(6).reshape(6, 1, 1) > 1, np.nan, X)
    wrong = refused_fields(client, upload(client, X)["id"], missing="nan", exclude={"1": [0, 1]})
    assert wrong["exclude"]["problem"] == "leaves only entries that are NaN"


def test_a_slice_that_a_mask_hides_is_refused_whatever_the_size_of_the_tensor(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, mask = planted(6, 5, 4), np.ones((6, 1, 4), bool)
    mask[2] = mask[:, :, 3] = False
    masked = {"mask": {"tensor_id": upload(client, mask)["id"]}}
    monkeypatch.setattr(MOST_SEARCHED, mask.size)
    tensor = upload(client, X)["id"]
    wrong = refused_fields(client, tensor, **masked)["tensor_id"]
    assert wrong["problem"] == "index 2 of mode 1 and index 3 of mode 3 have no observed entry"
    submit(client, tensor, **masked, exclude={"1": [2], "3": [3]})


@pytest.mark.parametrize("shape", [(6, 5, 4), (2, 3, 2, 1, 2, 2, 3, 2), (7, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_slice_of_gaps_is_found_in_every_mode(
    client: httpx.Client, shape: tuple[int, ...], order: Literal["C", "F"]
) -> None:
    for mode, length in enumerate(shape):
        if length < 2:
            continue
        X = np.array(planted(*shape), order=order)
        X[(slice(None),) * mode + (1,)] = np.nan
        wrong = refused_fields(client, upload(client, X)["id"], missing="nan")["tensor_id"]
        assert wrong["problem"] == f"index 1 of mode {mode + 1} has no observed entry"
