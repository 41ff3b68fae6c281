"""Logs with fields such as the study and the stage, and without secrets.

dasktune logs with Python's `logging`, below the logger ``dasktune``. Its records have fields as
attributes (`FIELDS`), for any handler to use; `configure` writes text or JSON lines to a file.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.storage.files.private import open_private
from dasktune.storage.redaction import redacted

FORMATS = ("text", "json")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

FIELDS = ("study", "run", "trials", "stage", "start", "stop", "step", "attempt", "worker")
"""Fields of a record.

``stage`` is the beginning of the state key at the end of the stage, ``start`` and ``stop`` are
its steps, ``step`` is the step of the message, and ``trials`` are some of the trials that
requested the stage.
"""

KEY_LETTERS = 12
"""Number of letters of a state key that identify a stage."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_STUDY: ContextVar[str | None] = ContextVar("dasktune-study", default=None)


def about(**fields: object) -> dict[str, object]:
    """Return the ``extra`` of a record: the fields given, and the study that runs here.

    Examples
    --------
    >>> with within("digits"):
    ...     about(worker="tcp://w:1", step=None)
    {'study': 'digits', 'worker': 'tcp://w:1'}
    """
    every = {"study": _STUDY.get(), **fields}
    return {name: value for name, value in every.items() if value is not None}


@contextmanager
def within(study: str) -> Iterator[None]:
    """Add a study to the records that this thread logs within the context."""
    token = _STUDY.set(study)
    try:
        yield
    finally:
        _STUDY.reset(token)


def trials_text(trials: Iterable[int]) -> str:
    """Return trial numbers as text for messages.

    Examples
    --------
    >>> trials_text([3]), trials_text([1, 2]), trials_text([])
    ('trial 3', 'trials 1, 2', 'no trial')
    """
    numbers = list(trials)
    if not numbers:
        return "no trial"
    return f"trial{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


class Redacting(logging.Filter):
    """Replaces secrets in the message, arguments, tracebacks and fields of records.

    `configure` adds it to its handlers; add it to your own handlers. It changes the record also
    for handlers that come later.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the secrets in a record and return True."""
        record.msg, record.args = redacted(record.getMessage()), None
        if record.exc_info:
            record.exc_text = record.exc_text or _FORMATTER.formatException(record.exc_info)
            record.exc_info = None
        if record.exc_text:
            record.exc_text = redacted(record.exc_text)
        if record.stack_info:
            record.stack_info = redacted(record.stack_info)
        for name, value in _fields_of(record).items():
            setattr(record, name, _without_secrets(value))
        return True


class TextLines(logging.Formatter):
    """Formats a record as a line of text with its fields at the end, and a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        fields = " ".join(f"{name}={_short(value)}" for name, value in _fields_of(record).items())
        record = copy.copy(record)
        # Messages hold text from outside, which must not forge a second line.
        record.msg, record.args = " ".join(record.getMessage().splitlines()), None
        record.msg += f" [{fields}]" if fields else ""
        return super().format(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """Return the time of a record."""
        return _time_of(record)


class Terminal(logging.Handler):
    """Writes to the present `sys.stderr`, which a live display may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 - as every handler of Python
            self.handleError(record)


class JsonLines(logging.Formatter):
    """Formats a record as JSON: time (UTC), level, logger, message, fields, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        document: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= _fields_of(record)
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            document["traceback"] = record.exc_text
        return json.dumps(document, default=str)


@contextmanager
def configure(
    path: Path | str | None = None, format: str | None = None, level: str | None = None
) -> Iterator[None]:
    """Write the logs of dasktune to a file or to standard error while the context lasts.

    With a file, warnings also go to standard error, unless the program has handlers of its
    own. Secrets are replaced.

    Parameters
    ----------
    path
        The file to append to, made if it is missing; None for standard error.
    format
        ``text``, or ``json`` for one JSON object a line; if None, text in a file, and bare
        messages on standard error.
    level
        The lowest level to write: ``DEBUG``, ``INFO``, ``WARNING`` or ``ERROR``; if None,
        ``INFO`` in a file and ``WARNING`` on standard error.

    Raises
    ------
    ConfigurationError
        If format or level is unknown, or the file cannot be written.
    """
    level = str(level or ("WARNING" if path is None else "INFO")).upper()
    format = format or ("bare" if path is None else "text")
    refuse(
        unknown(name, value, known)
        for name, value, known in (("log format", format, FORMATS), ("log level", level, LEVELS))
        if value not in known and value != "bare"
    )
    logger = logging.getLogger("dasktune")
    handlers = list(_handlers(path, format, level))
    before = logger.level
    for handler in handlers:
        handler.addFilter(Redacting())
        logger.addHandler(handler)
    logger.setLevel(min(handler.level for handler in handlers))
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def _handlers(path: Path | str | None, format: str, level: str) -> Iterator[logging.Handler]:
    """Yield the handlers that write a file, and warnings to the terminal."""
    main: logging.Handler = Terminal()
    if path is not None:
        try:
            with open(path, "ab", opener=open_private):
                main = logging.FileHandler(path, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"the log file must be writable: {error}") from error
    if format != "bare":
        main.setFormatter(JsonLines() if format == "json" else TextLines(_LINE))
    main.setLevel(level)
    yield main
    if path is not None and not logging.getLogger().handlers:
        terminal = Terminal()
        terminal.setLevel(logging.WARNING)
        yield terminal


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that a record was given as ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _without_secrets(value: object) -> object:
    """Return the value of a field as plain data, with all secrets replaced."""
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {redacted(str(key)): _without_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_without_secrets(item) for item in value]
    return redacted(str(value))


def _short(value: object) -> str:
    """Return a value of a field for a line of text."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    text = str(value)
    return json.dumps(text) if not text or any(mark in text for mark in ' "\n\r\t[]=') else text


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FORMATTER = logging.Formatter()
