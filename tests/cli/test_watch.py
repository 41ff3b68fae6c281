"""The watching of a text: each new text is shown, until ctrl-C."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dasktune.cli.watch import watch
from dasktune.errors import StorageError


def shown(*texts: str | Exception, is_terminal: bool = False) -> tuple[str, list[float]]:
    """Return the output for successive texts, and the pauses between them in seconds."""
    left, pauses, file = list(texts), [], io.StringIO()

    def read() -> str:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not left:
            raise KeyboardInterrupt

    console = Console(file=file, force_terminal=is_terminal, width=80)
    watch(read, 2.0, console=console, sleep=sleep)
    return file.getvalue(), pauses


def test_one_reading_follows_the_other_until_ctrl_c() -> None:
    assert shown("one [b]", "two") == ("one [b]\ntwo\n", [2.0, 2.0])


def test_on_a_terminal_the_last_one_is_drawn_over() -> None:
    text, _ = shown("one", "two", is_terminal=True)
    assert "one" in text
    assert "two" in text
    assert "\x1b[2K" in text


def test_a_database_that_is_away_for_a_while_is_no_end() -> None:
    text, pauses = shown("one", StorageError("no answer"), "three")
    assert text.splitlines() == ["one", "cannot be read now: no answer", "three"]
    assert len(pauses) == 3


def test_what_is_wrong_from_the_beginning_ends_it() -> None:
    with pytest.raises(StorageError):
        shown(StorageError("there is no database"))
