"""Changes that the page may make, if it was started with ``--allow-changes``.

The page reads through a connection that cannot write. A change opens another one for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from dasktune._engine.timeouts import HEARTBEAT_SECONDS
from dasktune._study.from_elsewhere import (
    empty_queue,
    enqueue_point,
    retry_trials,
    stop_study,
)
from dasktune.errors import ConfigurationError, unknown
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow

WHERE = "the live page"
"""How the page is named where its requests are shown."""

CHANGES: Mapping[str, tuple[str, ...]] = {
    "stop": (),
    "retry": ("trials",),
    "enqueue": ("params",),
    "unqueue": (),
}
"""The changes by name, with the fields of their documents."""


@dataclass(frozen=True, slots=True)
class StudyChanges:
    """Makes the changes that the page asks for."""

    url: str

    def make(self, name: str, row: StudyRow, document: object) -> str:
        """Make a change; return what happens now, in words.

        Parameters
        ----------
        name
            One of `CHANGES`.

        Raises
        ------
        ConfigurationError
            If the document is wrong, or the change is refused.
        """
        fields = _checked(name, document)
        with closing(Database(self.url, create=False)) as database:
            match name:
                case "stop":
                    driver = stop_study(database, row, WHERE)
                    return (
                        f"Process {driver.pid} on {driver.host} saves what runs and ends; it looks "
                        f"every {HEARTBEAT_SECONDS:g} s. The same command goes on later."
                    )
                case "retry":
                    trials = retry_trials(database, row, _numbers(fields.get("trials", [])))
                    noun = "trial" if len(trials) == 1 else "trials"
                    return f"The next run trains {len(trials):,} failed {noun} again."
                case "enqueue":
                    enqueue_point(database, row, fields.get("params", {}))
                    return "Queued: the next new tuner that draws configurations tries it first."
                case _:
                    empty_queue(database, row)
                    return "The queue is empty."


def _checked(name: str, document: object) -> Mapping[str, Any]:
    if name not in CHANGES:
        raise ConfigurationError(unknown("change", name, CHANGES))
    if not isinstance(document, dict):
        raise ConfigurationError(f"a change must be a JSON object, got {document!r:.40}")
    for field in document:
        if field not in CHANGES[name]:
            raise ConfigurationError(unknown(f"field of {name}", field, CHANGES[name]))
    return document


def _numbers(given: object) -> list[int]:
    if not isinstance(given, list) or any(type(number) is not int for number in given):
        raise ConfigurationError(f"trials must be a list of numbers, got {given!r:.40}")
    return given
