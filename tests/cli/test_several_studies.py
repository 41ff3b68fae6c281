"""Stores with several studies: a line each in `status`, reports without a study file, hints."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import dasktune as dt
from dasktune.cli import app
from dasktune.cli.watch import fitted
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import RunRow


def create(store: Path, name: str) -> None:
    study = dt.create_study(None, name=name, metric="loss", direction="minimize", storage=store)
    number = study.ask(dt.algos.Random(dt.Space(lr=dt.Float(0, 1)), trials=1, max_steps=1)).number
    study.tell(number, 0.25)
    study.close()


def run(store: Path, name: str) -> None:
    """Write the heartbeat of a driver: this process."""
    database = Database(store / "dasktune.db")
    row, now = database.study(name), time.time()
    assert row is not None
    place = {"host": socket.gethostname(), "pid": os.getpid(), "version": "0"}
    database.write_run(RunRow(run="run", study_id=row.id, began=now, seen=now, **place))
    database.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of three studies: the second one runs."""
    for name in ("first", "second", "third"):
        create(tmp_path / "runs/store", name)
    run(tmp_path / "runs/store", "second")
    return tmp_path / "runs/store"


def command(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_several_studies_have_a_line_each(store: Path) -> None:
    code, out, _ = command("status", str(store))
    lines = out.splitlines()
    assert (code, [line.split()[0] for line in lines]) == (
        0,
        ["study", "second", "third", "first", "one"],
    )
    assert lines[1].split()[1:5] == ["running", "1", "of", "1"]
    assert "loss 0.25" in lines[2]
    full = command("status", str(store), "--study", "second")[1]
    assert full.startswith("second (minimize loss)\n  trials  ")
    assert len(command("status", str(store), "--verbose")[1].splitlines()) > 3 * 4


def test_status_takes_a_folder_of_stores(store: Path) -> None:
    dt.create_study(None, name="fourth", metric="loss", storage=store.parent / "other").close()
    code, out, _ = command("status", str(store.parent))
    assert (code, sorted(line.split()[0] for line in out.splitlines()[1:-1])) == (
        0,
        ["first", "fourth", "second", "third"],
    )
    assert command("status", str(store.parent), "--study", "fourth")[1].startswith("fourth (min")
    assert "unknown study 'fith'" in command("status", str(store.parent), "--study", "fith")[2]


def test_a_store_without_its_file_gives_a_report(store: Path) -> None:
    code, out, _ = command("report", str(store), "--study", "third")
    assert (code, out) == (0, f"{store / 'report-third.html'}\n")
    assert "third" in (store / "report-third.html").read_text()
    assert "--study must be one of first, second, third" in command("report", str(store))[2]


def test_what_is_not_there_is_called_so(store: Path, tmp_path: Path) -> None:
    for name in ("status", "ls", "report", "gc", "rm"):
        code, _, error = command(name, str(tmp_path / "nope"))
        assert code == 2
        assert error.startswith(f"error: no such file or folder: '{tmp_path / 'nope'}'"), name
    code, _, error = command("ls", str(tmp_path))
    assert (code, error) == (2, f"error: '{tmp_path}' is no store; stores below it: {store}\n")
    assert "no such file: 'nope.py'" in command("run", "nope.py")[2]


@pytest.mark.parametrize(("height", "shown"), [(30, 20), (10, 10), (3, 3)])
def test_a_long_text_is_cut_to_the_window(height: int, shown: int) -> None:
    text = "\n".join(f"line {number} {'x' * 100}" for number in range(20))
    console = Console(width=40, height=height, force_terminal=True)
    lines = console.render_lines(fitted(text, height), console.options)
    assert len(lines) == min(shown, 19 + 1) - (shown < 20)
    assert sum(segment.cell_length for segment in lines[0]) <= 40
    if shown < 20:
        assert lines[-1][0].text.startswith(f"... {20 - (height - 2)} more lines")
