"""The server in a process of its own: a driver that shows its study does not wait for it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dasktune._dashboard.access import Access
from dasktune._dashboard.changes import StudyChanges
from dasktune._dashboard.files import bokeh_files
from dasktune._dashboard.server import serve
from dasktune._dashboard.studies import Studies
from dasktune._engine.timeouts import PAGE_END_SECONDS
from dasktune.errors import ClusterError
from dasktune.storage.database.database import Database


@contextmanager
def served(
    database: str, study: str | None = None, *, port: int = 0, allows_changes: bool = False
) -> Iterator[str]:
    """Serve a database in another process inside the context; yield the address to open.

    The database's URL goes through a pipe: it may hold a password, and command lines are public.

    Parameters
    ----------
    study
        The only study to show; None for all.
    port
        The port; 0 takes any that is free.
    allows_changes
        Whether the page may stop runs, retry trials and queue points.

    Raises
    ------
    ConfigurationError
        If Bokeh is not installed.
    ClusterError
        If the server does not start.
    """
    bokeh_files()
    process = subprocess.Popen(
        [sys.executable, "-m", "dasktune._dashboard"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C in the terminal is for the driver, which then ends this process.
        start_new_session=True,
    )
    try:
        if process.stdin is None or process.stdout is None:
            raise ClusterError("the live page could not be started")
        options = {
            "database": database,
            "study": study,
            "port": port,
            "allows_changes": allows_changes,
        }
        process.stdin.write(json.dumps(options) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise ClusterError(f"the live page ended with code {process.wait()}")
        document = json.loads(answer)
        if "error" in document:
            raise ClusterError(f"the live page could not be started: {document['error']}")
        yield str(document["address"])
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End a server: it ends when its input does."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    try:
        process.wait(PAGE_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    """Serve what the first line of the input says, until the input ends."""
    options = json.loads(sys.stdin.readline())
    try:
        database = Database(options["database"], create=False, reads_only=True)
        changes = StudyChanges(options["database"]) if options["allows_changes"] else None
        studies = Studies(database, options["study"], changes=changes)
        asyncio.run(_until_input_ends(studies, options["port"]))
    except Exception as error:  # noqa: BLE001 the starter gets the reason, whatever it is
        _say({"error": str(error)})


async def _until_input_ends(studies: Studies, port: int) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(
        serve(studies, Access(), port=port, on_address=lambda address: _say({"address": address}))
    )

    def wait_for_end() -> None:
        sys.stdin.read()
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(task.cancel)

    threading.Thread(target=wait_for_end, daemon=True).start()
    with suppress(asyncio.CancelledError):
        await task


def _say(document: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
