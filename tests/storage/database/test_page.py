"""The page about the database draws the tables as they are, and names every column."""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa

from dasktune.storage.database import schema

PAGE = (Path(__file__).parents[3] / "docs" / "database.md").read_text()
TABLES = [*schema.metadata.sorted_tables, schema.revision]


def drawn(table: sa.Table) -> str:
    """Return a table as Mermaid draws it."""
    lines = [
        f"        {column.type.compile()} {column.name}{' PK' if column.primary_key else ''}"
        for column in table.columns
    ]
    return "\n".join([f"    {table.name} {{", *lines, "    }"])


def test_diagram_shows_all_tables() -> None:
    (diagram,) = re.findall(r"```mermaid\nerDiagram\n(.*?)```", PAGE, re.DOTALL)
    for table in TABLES:
        assert drawn(table) in diagram
    assert set(re.findall(r"^    (\w+) \{", diagram, re.MULTILINE)) == {one.name for one in TABLES}


def test_every_table_and_column_is_explained() -> None:
    text = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert sections.keys() == {one.name for one in TABLES}
    for table in TABLES:
        missing = [
            name for name in sorted(table.columns.keys()) if f"`{name}`" not in sections[table.name]
        ]
        assert missing == [], table.name


def test_page_names_the_newest_revision() -> None:
    assert f"`{schema.REVISIONS[-1]}`" in PAGE
