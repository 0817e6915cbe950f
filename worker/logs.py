"""One set-up of logging for every process: lines for people or JSON, each saying on whose behalf it was written."""

import json
import logging
import sys
import traceback
import warnings
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from worker.configuration import Configuration
from worker.redaction import redacted

SUBJECT = ("request_id", "owner", "job_id")
ANSWER = ("method", "route", "path", "status", "milliseconds")
# What these tell at info is about their own machinery, once per wake-up call; ours tell of jobs.
CHATTY = ("celery.worker.strategy", "celery.app.trace", "celery.redirected")
OTHERS = ("celery", "kombu", "uvicorn", "asyncio")


@dataclass
class Subject:
    """On whose behalf a line is written. A request's is filled in as it becomes known, in place: the threads that
    handle a request have copies of its context, so a new value would not reach the others."""

    request_id: str | None = None
    owner: str | None = None
    job_id: str | None = None


_context: ContextVar[Subject | None] = ContextVar("subject", default=None)
_process = Subject()


def subject() -> Subject:
    """That of the request or job at hand, else of the process; changing a copy of the latter changes nothing."""
    return _context.get() or replace(_process)


def concern(new: Subject) -> None:
    """From here on, in this task or thread and those that copy its context."""
    _context.set(new)


def concern_process(new: Subject) -> None:
    """A job's process is about one job, in all of its threads."""
    global _process  # noqa: PLW0603 - one per process is what is meant
    _context.set(None)
    _process = new


class AddSubject(logging.Filter):
    """Gives every record the fields of its subject; None where there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        found = subject()
        for name in SUBJECT:
            setattr(record, name, getattr(found, name))
        return True


class Human(logging.Formatter):
    """`time LEVEL logger message request_id=… owner=… job_id=…`; a message cannot begin a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        told = [f"{name}={_word(value)}" for name in SUBJECT if (value := getattr(record, name, None)) is not None]
        message = "\\n".join(record.getMessage().rstrip().splitlines())
        line = " ".join([_time(record), record.levelname, record.name, message, *told])
        return redacted("\n".join(filter(None, [line, _trace(record)])))


class Json(logging.Formatter):
    """One object per line; fields that do not apply are left out."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage().rstrip()),
            "process": record.process,
        }
        told |= {name: value for name in SUBJECT + ANSWER if (value := getattr(record, name, None)) is not None}
        if trace := _trace(record):
            told["exception"] = redacted(trace)
        return json.dumps(told, ensure_ascii=False, default=str)


def set_up(configuration: Configuration) -> None:
    """Everything to standard error, in one form. Warnings of Python come the same way."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(AddSubject())
    handler.setFormatter(Json() if configuration.log_format == "json" else Human())
    level = logging.getLevelNamesMapping()[configuration.log_level.upper()]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in OTHERS:
        logging.getLogger(name).setLevel(max(level, logging.INFO))
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(True)


def ignore_celery_as_root() -> None:
    """Celery warns a worker that runs as root of messages that carry code. Ours are JSON and carry nothing: all that a
    forged one can do is make a worker look into the queue."""
    from celery.exceptions import SecurityWarning

    warnings.filterwarnings("ignore", category=SecurityWarning)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str | None:
    """The whole traceback as one text, if the record has one."""
    if not record.exc_info or record.exc_info[0] is None:
        return None
    return "".join(traceback.format_exception(*record.exc_info)).rstrip()


def _word(value: str) -> str:
    """As it is, unless it could be taken for something else."""
    return value if value.isprintable() and not set(value) & set(' "=') else json.dumps(value)
