"""A job's record in Redis is a flat table of strings; this reads it."""

import json
from datetime import UTC, datetime
from typing import Any, TypeAlias

from solvers import Settings
from worker.contract import Claim, InitialJob, Job, JobError, JobResult, Progress

Fields: TypeAlias = dict[str, str]


def job_from(fields: Fields, position: int | None) -> Job:
    request: dict[str, Any] = json.loads(fields["request"])
    return Job.model_validate(
        {
            "id": fields["id"],
            "owner": fields["owner"],
            "name": request["name"],
            "study_id": request["study_id"],
            "settings": Settings.model_validate(request["settings"]),
            "tensor_id": fields["tensor_id"],
            "priority": int(fields["priority"]),
            "initial": InitialJob(job_id=fields["initial"]) if "initial" in fields else None,
            "state": fields["state"],
            "progress": _progress(fields),
            "result": JobResult.model_validate_json(fields["result"]) if "result" in fields else None,
            "error": JobError.model_validate_json(fields["error"]) if "error" in fields else None,
            "attempt": int(fields["attempt"]),
            "cancel_requested": fields.get("cancel_requested") == "1",
            "queue_position": position,
            "created_at": _time(fields, "created_at"),
            "started_at": _time(fields, "started_at"),
            "finished_at": _time(fields, "finished_at"),
        }
    )


def claim_from(fields: Fields) -> Claim:
    request: dict[str, Any] = json.loads(fields["request"])
    published = _progress(fields)
    return Claim(
        job_id=fields["id"],
        owner=fields["owner"],
        request_id=request.get("request_id"),
        fence=int(fields["fence"]),
        attempt=int(fields["attempt"]),
        sha256=fields["sha256"],
        initial_job_id=fields.get("initial"),
        settings=Settings.model_validate(request["settings"]),
        checkpoint=fields.get("checkpoint"),
        published=published,
        spent_seconds=max(float(fields.get("spent", 0)), published.seconds if published else 0.0),
    )


def _progress(fields: Fields) -> Progress | None:
    return Progress.model_validate_json(fields["progress"]) if "progress" in fields else None


def _time(fields: Fields, name: str) -> datetime | None:
    return datetime.fromtimestamp(int(fields[name]) / 1000, UTC) if name in fields else None
