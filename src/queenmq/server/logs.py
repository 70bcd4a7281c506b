"""The server's log: one line per event on stderr, as JSON for programs or as text for a terminal.

Every process of the server sets it up here, the libraries' loggers included. A line never holds a payload or a secret.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# They speak of single requests, which clients can make as bad and as many as they like.
_TALKATIVE = {"uvicorn.error": logging.ERROR, "uvicorn.access": logging.CRITICAL, "asyncio": logging.WARNING}


def configure(level: str, style: str, source: str) -> None:
    """`style` is `json`, `text`, or `auto` for text on a terminal and JSON elsewhere; `source` names this process."""
    as_text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter(source) if as_text else JsonFormatter(source))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    for name, least in _TALKATIVE.items():
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(least, _LEVELS[level]))


def fields(**values: object) -> dict[str, Any]:
    """Data for a line, beside its sentence: `log.info("…", extra=fields(worker=1))`."""
    return {"fields": values}


class JsonFormatter(logging.Formatter):
    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, object] = {
            "time": _when(record).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname.lower(),
            "source": self._source,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(said, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        loud = "" if record.levelno < logging.WARNING else f"{record.levelname}: "
        said = f"{_when(record).astimezone():%H:%M:%S} {self._source}: {loud}{record.getMessage()}"
        return f"{said}\n{self.formatException(record.exc_info)}" if record.exc_info else said


def _when(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
