"""The command ``dashboard``: the live page of stores, databases or study files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress

import typer

from dasktune.errors import refuse, unknown
from dasktune.storage.database.database import Database


def show(
    targets: Sequence[str],
    name: str | None,
    settings: Sequence[str],
    *,
    port: int,
    allows_changes: bool = False,
) -> None:
    """Serve the live page until ctrl-C.

    Parameters
    ----------
    targets
        Study files, storage folders or URLs, databases' files or URLs, or folders of stores.
    name
        The only study to show; all of the databases if None.
    settings
        As for `dasktune.cli.study_file.load`, for the study files among them.
    port
        The port; 0 takes any that is free.
    allows_changes
        Whether the page may stop runs, retry trials and queue points.

    Raises
    ------
    ConfigurationError
        If a target is none of these, has no study of that name, or the port is taken.
    StorageError
        If there is no database, or it cannot be read.
    """
    from dasktune._dashboard.access import Access
    from dasktune._dashboard.changes import StudyChanges
    from dasktune._dashboard.files import bokeh_files
    from dasktune._dashboard.server import serve
    from dasktune._dashboard.studies import NUMBERS, Stores, Studies
    from dasktune.cli.status import databases_at

    bokeh_files()  # where they are missing, say so before a study file is loaded
    places: dict[str, str | None] = {}
    for target in targets:
        is_file = len(targets) == 1 or target.endswith(".py")
        places |= databases_at(target, settings if is_file else ())
    with ExitStack() as stack:
        opened = {
            url: stack.enter_context(closing(Database(url, create=False, reads_only=True)))
            for url in places
        }
        known = {url: _names(database) for url, database in opened.items()}
        if name is not None:
            every = {each for names in known.values() for each in names}
            refuse([] if name in every else [unknown("study", name, every)])
            opened = {url: each for url, each in opened.items() if name in known[url]}
        parts = [
            Studies(
                database,
                name,
                first=places[url],
                changes=StudyChanges(url) if allows_changes else None,
                offset=place * NUMBERS,
            )
            for place, (url, database) in enumerate(opened.items())
        ]
        studies = parts[0] if len(parts) == 1 else Stores(parts)

        def say(address: str) -> None:
            typer.echo(f"page: {address}")
            typer.echo("Keep the address to yourself: its token opens the page. Ctrl-C ends it.")

        with suppress(KeyboardInterrupt):
            asyncio.run(serve(studies, Access(), port=port, on_address=say))


def _names(database: Database) -> set[str]:
    rows, unreadable = database.readable_studies()
    return {row.name for row in rows} | {each.study for each in unreadable}
