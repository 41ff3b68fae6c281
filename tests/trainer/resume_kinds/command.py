"""The command ``python -m tests.trainer.resume_kinds``: the table of all kinds."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

from dask.distributed import Client

from dasktune._cluster.fork_server import SWITCH as FORK_SWITCH
from dasktune._cluster.local import local_client
from tests.forked import LIBRARIES, fork_workers
from tests.trainer.resume_kinds.kind import Kind
from tests.trainer.resume_kinds.measure import SECONDS, STEPS, Outcome, Row, measured
from tests.trainer.resume_kinds.processes import own_folder
from tests.trainer.resume_kinds.table import ALL

WORKERS = 2
LIBRARIES_OF_KINDS = ("pandas", "scipy.sparse", "sklearn.preprocessing", "sqlite3", "tqdm")
RESTART_SECONDS = 15
SPOILING = frozenset({"outside", "branches"})
"""The modules of kinds that change options of torch, the environment or other modules."""


class Cluster:
    """A cluster of forked workers, which are new ones after each kind that may have spoilt them.

    Trainers travel by value, so a worker opens a new copy of a kind's module for each study. But a
    kind may leave its worker with other options of torch or of the process.
    """

    def __init__(self) -> None:
        self._opened: Any = None
        self._client: Client | None = None
        self._is_spoilt = False

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The address of a cluster with workers that no kind has spoilt."""
        if self._client is not None and self._is_spoilt:
            try:
                self._client.restart(timeout=RESTART_SECONDS)
            except TimeoutError:
                self.close()
        if self._client is None:
            self._opened = local_client(WORKERS)
            self._client = self._opened.__enter__()
            logging.getLogger("distributed.nanny").setLevel(logging.ERROR)
        self._is_spoilt = False
        return str(self._client.scheduler_info()["address"])

    def note(self, row: Row) -> None:
        """Note that a kind has been measured."""
        self._is_spoilt = row.executed > 0 and row.theme in SPOILING
        if row.outcome == Outcome.BROKEN.value:
            self.close()

    def close(self) -> None:
        """Close it; the next address is that of another cluster."""
        if self._opened is not None:
            self._opened.__exit__(None, None, None)
        self._opened = self._client = None


def chosen(patterns: str) -> list[Kind]:
    """Return the kinds whose names or modules match one of the patterns."""
    return [
        kind
        for kind in ALL
        if any(
            fnmatch(text, part) for text in (kind.name, kind.theme) for part in patterns.split(",")
        )
    ]


def read(path: Path | None, steps: int) -> dict[str, dict[str, Any]]:
    """Return the rows of an output file by name, as far as they are of so many steps."""
    if path is None or not path.exists():
        return {}
    rows = json.loads(path.read_text())["kinds"]
    return {row["name"]: row for row in rows if row["steps"] == steps}


def write(path: Path | None, rows: dict[str, dict[str, Any]], seconds: float) -> None:
    if path is None:
        return
    document = {"summary": summary(rows), "seconds": round(seconds), "kinds": [*rows.values()]}
    passing = path.with_suffix(".part")
    passing.write_text(json.dumps(document, indent=1))
    passing.replace(path)


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return the number of kinds by outcome, and of those that are not as expected."""
    counts = Counter(row["outcome"] for row in rows.values())
    return {
        **{outcome.value: counts[outcome.value] for outcome in Outcome},
        "not as expected": sum(not row["is_expected"] for row in rows.values()),
        "wrong culprit": sum(row["is_culprit_right"] is False for row in rows.values()),
        "false alarms": sum(row["is_false_alarm"] for row in rows.values()),
        "kinds": len(rows),
    }


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    culprit = {None: "-", True: "yes", False: "NO"}[row["is_culprit_right"]]
    mark = " " if row["is_expected"] else "!"
    return (
        f"{mark} {row['name']:26} {row['expected']:18} {row['outcome']:8} {culprit:3} "
        f"{len(row['wrong']):2} wrong {row['seconds']:5.1f} s  {row['named'][:90]}"
    )


@contextmanager
def forked_cluster() -> Iterator[Cluster]:
    """Give a cluster that forks, in a folder of its own for temporary files."""
    os.environ[FORK_SWITCH] = "off"
    LIBRARIES.extend(name for name in LIBRARIES_OF_KINDS if name not in LIBRARIES)
    fork_workers()
    get_temp_dir()  # multiprocessing keeps it to its end
    with own_folder(), Cluster() as cluster:
        yield cluster


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.trainer.resume_kinds", description=__doc__
    )
    parser.add_argument("--kinds", default="*", metavar="PATTERN,...", help="names or modules")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a trial, {STEPS} by default")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="limit of a study, and of lone trials"
    )
    parser.add_argument("--output", type=Path, help="JSON file; kinds that it has are left out")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    given = parser.parse_args()
    begun = time.monotonic()
    rows = read(given.output, given.steps)
    with forked_cluster() as cluster:
        for kind in chosen(given.kinds):
            if kind.name in rows:
                continue
            row: Row = measured(kind, cluster.address, steps=given.steps, seconds=given.seconds)
            cluster.note(row)
            rows[kind.name] = row.to_json()
            write(given.output, rows, time.monotonic() - begun)
            if not given.json:
                print(line(rows[kind.name]), flush=True)
    counts = summary(rows)
    if given.json:
        print(json.dumps({"summary": counts, "kinds": [*rows.values()]}, indent=1))
    else:
        print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if counts["not as expected"] or counts["wrong culprit"] else 0
