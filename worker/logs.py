"""Logging for all processes: text or JSON, with the request, owner and job, and with secrets removed."""

import json
import logging
import re
import sys
import traceback
import warnings
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sparse_ncp.worker.config import Configuration

HIDDEN = "***"
SECRETS = (
    # Everything before the host of an address: a password may contain any character but a space.
    (re.compile(r"(?<=://)[^\s]*@"), f"{HIDDEN}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",]+"), rf"\1 {HIDDEN}"),
    (re.compile(r"\b(ncp_)[A-Za-z0-9_-]{16,}"), rf"\1{HIDDEN}"),
)
CONTEXT = ("request_id", "owner", "job_id")
ANSWER = ("method", "route", "path", "status", "milliseconds")
# These log every wake-up message at level info, and nothing about jobs.
CHATTY = ("celery.worker.strategy", "celery.app.trace", "celery.redirected")
OTHERS = ("celery", "kombu", "uvicorn", "asyncio")


def redact(text: str) -> str:
    """Replace passwords in addresses, credentials of requests, and API keys by asterisks."""
    for pattern, hidden in SECRETS:
        text = pattern.sub(hidden, text)
    return text


@dataclass
class LogContext:
    """The request, owner and job that a log line is about.

    The context of a request is filled in place: the threads that handle the request have copies of the context
    variable, so a new value would not reach all of them.
    """

    request_id: str | None = None
    owner: str | None = None
    job_id: str | None = None


_context: ContextVar[LogContext | None] = ContextVar("log_context", default=None)
_process = LogContext()


def log_context() -> LogContext:
    """Return the context of the current request or job, or a copy of the context of the process."""
    return _context.get() or replace(_process)


def bind_context(new: LogContext) -> None:
    """Set the context of this task or thread."""
    _context.set(new)


def bind_process_context(new: LogContext) -> None:
    """Set the context of all threads of this process, which runs a single job."""
    global _process  # noqa: PLW0603 - one per process is intended
    _context.set(None)
    _process = new


class AddLogContext(logging.Filter):
    """Add the fields of the current context to every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        found = log_context()
        for name in CONTEXT:
            setattr(record, name, getattr(found, name))
        return True


class TextFormatter(logging.Formatter):
    """Format records as `time LEVEL logger message request_id=… owner=… job_id=…`, with line breaks escaped."""

    def format(self, record: logging.LogRecord) -> str:
        context = []
        for name in CONTEXT:
            if (value := getattr(record, name, None)) is not None:
                is_plain = value.isprintable() and not set(value) & set(' "=')
                context.append(f"{name}={value if is_plain else json.dumps(value)}")
        message = "\\n".join(record.getMessage().rstrip().splitlines())
        line = " ".join([_time(record), record.levelname, record.name, message, *context])
        return redact("\n".join(filter(None, [line, _trace(record)])))


class JsonFormatter(logging.Formatter):
    """Format records as one JSON object per line, without fields that do not apply."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage().rstrip()),
            "process": record.process,
        }
        fields |= {name: value for name in CONTEXT + ANSWER if (value := getattr(record, name, None)) is not None}
        if trace := _trace(record):
            fields["exception"] = redact(trace)
        return json.dumps(fields, ensure_ascii=False, default=str)


def configure_logging(configuration: Configuration) -> None:
    """Log everything, including Python warnings, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(AddLogContext())
    handler.setFormatter(JsonFormatter() if configuration.log_format == "json" else TextFormatter())
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
    """Silence Celery's warning about running as root, which concerns messages that contain code.

    Our messages are empty JSON: a forged one can only make a worker try to claim a job.
    """
    from celery.exceptions import SecurityWarning

    warnings.filterwarnings("ignore", category=SecurityWarning)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str | None:
    """Return the traceback of the record, if it has one."""
    if not record.exc_info or record.exc_info[0] is None:
        return None
    return "".join(traceback.format_exception(*record.exc_info)).rstrip()
