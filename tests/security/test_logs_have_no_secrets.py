"""No log has a secret."""

import logging
import sys
from pathlib import Path

import pytest

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.worker.logs import JsonFormatter, TextFormatter, redact
from sparse_ncp.worker.owner_limits import Limits
from tests.support.api import finished, holder, planted, refused, submit, upload
from tests.support.stack import ENCODED_PASSWORD, PASSWORD, locked_redis, server, wait_for

KEY = "ncp_" + "k3y" * 12
FOREIGN = "another-secret-of-a-caller"


@pytest.mark.parametrize("form", ["human", "json"])
def test_no_log_has_a_secret(tmp_path: Path, form: str) -> None:
    """Log everything during a job, refused requests and a crash of Redis."""
    with locked_redis(tmp_path / "r") as (address, redis):
        settings = {"redis_url": address, "log_level": "debug", "log_format": form, "min_free_bytes": 1}
        key = ApiKeys(tmp_path / "data").create("lab", False, Limits())
        with server(tmp_path, **settings) as running, holder(running.address, key) as caller:
            caller.headers.update({"Cookie": FOREIGN, "X-Api-Key": FOREIGN})
            finished(caller, submit(caller, upload(caller, planted(5, 4, 3))["id"])["id"])
            refused(caller.get("/v1/jobs/none", params={"key": FOREIGN}), 422)
            refused(caller.get("/v1/jobs", headers={"Authorization": f"Bearer {KEY}"}), 401)
            log = running.log
            redis.kill()
            redis.wait()
            refused(caller.get("/v1/jobs", timeout=60), 503)
            wait_for(lambda: log.read_text().count("put off") or "cannot" in log.read_text(), what="complaints")
    written = [log, *tmp_path.rglob("*.log")]
    assert len(written) >= 2
    for path in written:
        reported = path.read_text()
        for secret in (PASSWORD, ENCODED_PASSWORD, key, KEY, FOREIGN, "p4ss"):
            assert secret not in reported, f"{path.name} has {secret}"


@pytest.mark.parametrize(
    "text",
    [
        "redis://:s3cret@host:6379/0 is away",
        "redis://user:s3cret/x@y@host",
        "rediss+socket://:s3cret@/tmp/x",
        "Authorization: Bearer s3cret-s3cret",
        "{'authorization': 'Basic s3cret=='}",
        "the key ncp_s3crets3crets3cret was refused",
    ],
)
def test_what_looks_like_a_secret_is_not_written(text: str) -> None:
    assert "s3cret" not in redact(text)
    record = logging.LogRecord("ncp", logging.ERROR, "x", 1, "failed with %s", (text,), None)
    assert "s3cret" not in TextFormatter().format(record)
    assert "s3cret" not in JsonFormatter().format(record)
    try:
        raise RuntimeError(text)
    except RuntimeError:
        record.exc_info = sys.exc_info()
    assert "s3cret" not in TextFormatter().format(record)
    assert "s3cret" not in JsonFormatter().format(record)
