"""One line per log record, with its values as key=value pairs that tools can read."""

import logging
from datetime import datetime
from typing import Any

# What every record has; the rest came with `extra=` and is printed.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
# Added by Django and uvicorn; none of them is readable in a line.
_LEFT_OUT = frozenset({"request", "server_time", "color_message"})


class KeyValueFormatter(logging.Formatter):
    """Formats ``time level logger message key=value …``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line, followed by its traceback if it has one."""
        moment = datetime.fromtimestamp(record.created).astimezone()
        words = [
            moment.isoformat(timespec="milliseconds"),
            record.levelname,
            record.name,
            record.getMessage(),
        ]
        words += [
            f"{key}={_quoted(value)}"
            for key, value in record.__dict__.items()
            if key not in _STANDARD and key not in _LEFT_OUT
        ]
        line = " ".join(words)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _quoted(value: object) -> str:
    text = str(value)
    return repr(text) if any(mark in text for mark in ' "=\n') else text


class RefusalFilter(logging.Filter):
    """Leaves the traceback out where an answer was no failure of ours, such as 403 or 404."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record; Django puts the answer's status on it."""
        if getattr(record, "status_code", 500) < 500:
            record.exc_info = None
        return True


def logging_settings(level: str) -> dict[str, Any]:
    """Return Django's LOGGING: everything to standard error, which the supervisor keeps."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": "config.logs.KeyValueFormatter"}},
        "filters": {"refusals": {"()": "config.logs.RefusalFilter"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Django's own handlers print only in debug mode or send mail: ours prints always.
            "django": {"handlers": [], "level": level, "propagate": True},
            "django.request": {"filters": ["refusals"], "propagate": True},
            "django.server": {"handlers": [], "propagate": True},
            # So has uvicorn, set up before us.
            "uvicorn": {"handlers": [], "propagate": True},
            "uvicorn.error": {"handlers": [], "propagate": True},
            "uvicorn.access": {"level": "WARNING"},
            # Two lines per periodic task say nothing; failures are errors.
            "celery.worker.strategy": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
            # A line per request of a page that polls says nothing.
            "httpx": {"level": "WARNING"},
            "httpcore": {"level": "WARNING"},
        },
    }
