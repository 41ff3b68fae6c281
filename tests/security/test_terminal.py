"""No terminal obeys what a stranger wrote into a database or a store."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest

import dasktune as dt
from dasktune.cli.gc import collect, request_of
from dasktune.cli.ls import View, places_of
from dasktune.cli.ls import read as list_store
from dasktune.cli.results import table
from dasktune.cli.status import read as read_status
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.leases import HeldLeases, Lease, Leases

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m\r\n\u202eowned\0"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a storage whose study was given another name by a stranger, who also has a lease."""
    folder = tmp_path / "store"
    study = dt.create_study(None, name="own", storage=folder, metric="loss")
    tuner = dt.algos.Random(dt.Space(x=dt.Float(-1, 1)), trials=3, max_steps=1)
    while asked := study.ask(tuner):
        study.tell(asked, 1.0)
    study.close()
    with sqlite3.connect(folder / "dasktune.db") as connection:
        connection.execute("update dasktune_studies set name = ?, root = 'a1f0'", (HOSTILE,))
        connection.execute(
            "update dasktune_studies set spec = replace(spec, '\"loss\"', ?)",
            (json.dumps(HOSTILE),),
        )
    connection.close()
    lease = Lease(holder=HOSTILE, key="a1f1", first="a1f1", sequences={}, start=0, stop=1, step=0)
    held = HeldLeases(holder=HOSTILE, study=HOSTILE, expires=time.time() + 60.0, leases=(lease,))
    Leases(CheckpointStore(str(folder)).files).hold(held)
    return folder


def obeyed(text: str) -> list[str]:
    return [one for one in text if not one.isprintable() and one != "\n"]


def test_status_spells_it_out(store: Path) -> None:
    (found,) = map(str, read_status(str(store), None, ()))
    assert r"\x1b]0;pwned\x07" in found
    assert not obeyed(found)
    assert found.splitlines()[1].startswith("  trials"), "and the name has one line"


def test_ls_and_gc_spell_it_out(store: Path) -> None:
    places = places_of(str(store))
    listing = str(list_store(places, View()))
    assert "being trained now" not in listing, "no driver has such a name"
    assert not obeyed(listing)
    choices = collect(request_of(places, budget=None, keep=None, grace="1h", removes=False))
    assert not obeyed(str(choices))


def test_tables_spell_it_out() -> None:
    lines = table(["lr", HOSTILE], [[HOSTILE, 1.0], ["plain", 0.5]])
    assert len(lines) == 3
    assert not obeyed("\n".join(lines))
