"""Check with schemathesis that every response of a running server matches the OpenAPI document."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.api import finished, http_client, planted, submit, upload
from tests.support.stack import Server
from tests.support.studies import GRID, ended_study, submit_study

# Whether a body that fits the schema is also accepted depends on the tensor, and on options that exclude each other.
BEYOND_THE_SCHEMA = "positive_data_acceptance"
# Live streams do not end; what they carry has tests of its own.
STREAMS = "/events$"


def contradictions(running: Server, folder: Path, examples: int, seed: int = 1) -> str:
    """Return the report of schemathesis, empty if it found nothing; first with made-up ids, then with real ones."""
    made_up = _run(running, folder, {}, ["--max-examples", str(examples), "--seed", str(seed)])
    with http_client(running.address) as lab:
        tensor = upload(lab, planted(6, 5, 4))["id"]
        job = finished(lab, submit(lab, tensor)["id"])["id"]
        study = ended_study(lab, submit_study(lab, tensor, **{**GRID, "repeats": 1})["id"])["id"]
    known = {"path.tensor_id": tensor, "path.job_id": job, "path.study_id": study}
    keep = ["--exclude-method", "DELETE", "--include-path-regex", r"\{"]
    return made_up + _run(running, folder, known, [*keep, "--max-examples", str(examples), "--seed", str(seed)])


def _run(running: Server, folder: Path, parameters: dict[str, str], options: list[str]) -> str:
    settings = folder / "schemathesis.toml"
    # Strings of JSON are strings of TOML.
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in parameters.items()]
    settings.write_text("\n".join(["[parameters]", *lines, ""]))
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings), "run"]
    chosen = ["--checks", "all", "--exclude-checks", BEYOND_THE_SCHEMA, "--exclude-path-regex", STREAMS]
    ran = subprocess.run(
        [*command, f"{running.address}/openapi.json", *chosen, "--continue-on-failure", "--no-color", *options],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr
