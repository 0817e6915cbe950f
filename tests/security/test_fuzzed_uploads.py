"""Files that are nearly tensors are accepted or refused, and leave nothing behind. `make fuzz` sends 20,000 of them."""

from pathlib import Path

from tests.fuzz.attack import attack
from tests.support.stack import server

UPLOADS = 400


def test_spoilt_uploads_do_no_harm(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=0) as running:
        verdict = attack(running, seed=2, numbers=range(UPLOADS))
    assert verdict.complaints == []
    assert verdict.statuses["201"] > UPLOADS / 20
    assert verdict.statuses["422"] > UPLOADS / 5
