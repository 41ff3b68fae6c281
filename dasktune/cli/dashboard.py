"""The command ``dashboard``: the live page of a store, a database or a study file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing, suppress

import typer


def show(
    target: str,
    name: str | None,
    settings: Sequence[str],
    *,
    port: int,
    allows_changes: bool = False,
) -> None:
    """Serve the live page until ctrl-C.

    Parameters
    ----------
    target
        A study file, a storage folder or URL, or a database's file or URL.
    name
        The only study to show; all of the database if None.
    settings
        As for `dasktune.cli.study_file.load`, if the target is a study file.
    port
        The port; 0 takes any that is free.
    allows_changes
        Whether the page may stop runs, retry trials and queue points.

    Raises
    ------
    ConfigurationError
        If the target is none of these, has no study of that name, or the port is taken.
    StorageError
        If there is no database, or it cannot be read.
    """
    from dasktune._dashboard.access import Access
    from dasktune._dashboard.changes import StudyChanges
    from dasktune._dashboard.files import bokeh_files
    from dasktune._dashboard.server import Studies, serve
    from dasktune.cli.status import database_at
    from dasktune.storage.database.database import Database

    bokeh_files()  # where they are missing, say so before a study file is loaded
    url, own = database_at(target, settings)
    with closing(Database(url, create=False, reads_only=True)) as database:
        changes = StudyChanges(url) if allows_changes else None
        studies = Studies(database, name, first=own, changes=changes)

        def say(address: str) -> None:
            typer.echo(f"page: {address}")
            typer.echo("Keep the address to yourself: its token opens the page. Ctrl-C ends it.")

        with suppress(KeyboardInterrupt):
            asyncio.run(serve(studies, Access(), port=port, on_address=say))
