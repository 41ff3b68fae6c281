"""The page on adding a part: it names every interface, and files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import dasktune.abc

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
PLACEHOLDERS = {"NAME"}


def test_every_interface_has_a_row() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(dasktune.abc.__all__)
    assert all(f"`{name}`" in str(dasktune.abc.__doc__) for name in named)


def test_named_files_are_there() -> None:
    paths = {
        path
        for path in re.findall(r"`([\w./]+/[\w./]*|[\w/]+\.(?:py|toml|md))`", PAGE)
        if not PLACEHOLDERS & set(re.split(r"\W|_", path))
    }
    missing = [path for path in paths if not any((top / path).exists() for top in TOPS)]
    assert len(paths) > 30
    assert missing == []


TOPS = (ROOT, ROOT / "dasktune")
