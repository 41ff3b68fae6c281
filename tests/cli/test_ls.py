"""``dasktune ls`` shows what is stored, from a study file, a store or a database."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dasktune.cli import app
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode

from .conftest import Folder

pytestmark = pytest.mark.usefixtures("trained")


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ls", *arguments])


def shown(*arguments: str) -> list[list[str]]:
    """Return the cells of what a command prints, line by line."""
    done = command(*arguments)
    assert done.exit_code == 0, done.output
    return [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]


def document(*arguments: str) -> dict[str, Any]:
    done = command(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("target", ["counting.py", "runs/counting", "runs/counting/dasktune.db"])
def test_file_store_and_database_show_the_same(target: str) -> None:
    lines = shown(target)
    head = ["study", "trials", "checkpoints", "size", "training", "written", "used", "shared"]
    assert lines[0] == head
    assert lines[1][:3] == ["counting", "4", "6"]
    assert re.fullmatch(r"\d+(\.\d+)? k?B", lines[1][3])
    assert lines[1][5].endswith(" ago")
    assert lines[-1][0].startswith("runs/counting: 6 checkpoints, ")


def test_looking_changes_nothing(trained: Folder) -> None:
    def looks() -> dict[str, float]:
        files = [one for one in (trained.path / "runs").rglob("*") if one.is_file()]
        return {str(one): one.stat().st_mtime for one in files if "dasktune.db-" not in one.name}

    before = looks()
    shown("counting.py", "--checkpoints")
    assert looks() == before


def test_ls_checkpoints_shows_their_trials() -> None:
    lines = shown("runs/counting", "--checkpoints")
    assert lines[0] == ["study: trials", "step", "size", "training", "written", "key"]
    rows = lines[1 : lines.index([""])]
    assert [(row[0], row[1]) for row in rows[:2]] == [
        ("counting: 0, 1, 2", "6"),
        ("counting: 0, 2", "9"),
    ]
    assert sorted(row[0] for row in rows[2:]) == [f"counting: {trial}" for trial in range(4)]
    assert {row[-1] for row in rows} == set(CheckpointStore("runs/counting").keys())


def test_rows_come_in_the_order_asked_for_and_as_many() -> None:
    for sort, field, sign in (
        ("size", "nbytes", -1),
        ("cost", "seconds", -1),
        ("age", "written", 1),
    ):
        found = document("runs/counting", "--checkpoints", "--sort", sort)["checkpoints"]
        values = [sign * one[field] for one in found]
        assert values == sorted(values)
        assert len(found) == 6
    lines = shown("runs/counting", "--checkpoints", "--limit", "2")
    assert ["and 4 more"] in lines
    assert len(document("runs/counting", "--checkpoints", "--limit", "2")["checkpoints"]) == 2


def test_json_has_the_figures_of_the_store() -> None:
    found = document("runs/counting")
    assert found["store"] == "runs/counting"
    assert found["database"] == "runs/counting/dasktune.db"
    (study,) = found["studies"]
    assert (study["name"], study["trials"], study["checkpoints"]) == ("counting", 4, 6)
    assert found["total"]["checkpoints"] == 6
    assert found["total"]["nbytes"] == study["nbytes"] > 0
    assert found["of_other_databases"]["checkpoints"] == found["unfinished_nbytes"] == 0
    assert found["leases"] == []
    assert "checkpoints" not in found


def test_ls_database_outside_its_store_needs_the_store(trained: Folder) -> None:
    (trained.path / "runs/counting/dasktune.db").rename("elsewhere.db")
    done = command("elsewhere.db")
    assert (done.exit_code, "does not lie in a store" in done.stderr) == (2, True)
    for arguments in (
        ("elsewhere.db", "--storage", "runs/counting"),
        ("runs/counting", "--database", "elsewhere.db"),
    ):
        assert shown(*arguments)[1][:3] == ["counting", "4", "6"]


def test_a_store_alone_is_shown_without_a_database(trained: Folder) -> None:
    (trained.path / "runs/counting/dasktune.db").unlink()
    lines = shown("runs/counting")
    assert lines[0] == ["trained with", "checkpoints", "size", "training", "written"]
    assert lines[1][0].startswith("Python 3.")
    assert lines[1][1] == "6"
    assert lines[-1][0].startswith("no database: ")
    assert len(document("runs/counting", "--checkpoints")["checkpoints"]) == 6


def test_ls_totals_include_data_without_a_study(trained: Folder) -> None:
    store = CheckpointStore("runs/counting")
    keys = sorted(store.keys())
    store.discard(keys[0])
    store.save(encode({"x": 1}), key="ab12", attempt="a1", step=3)
    left = trained.path / "runs/counting/checkpoints/cd/cd34/a1/step-3/zarr.json"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x" * 1000)
    done = command("runs/counting")
    assert "of other databases: 1 checkpoint, " in done.stdout
    assert "of uploads that did not finish, or are under way: 1 kB" in done.stdout
    assert "known and not stored any more: 1 checkpoint\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "target must be a study file, a storage folder or a database that exists"),
        (["runs/counting", "--study", "x"], "unknown study 'x'; known: counting"),
        (["runs/counting", "--sort", "x"], "unknown sort 'x'; known: age, cost, size, study"),
        (["runs/counting", "--config", "a=1"], "config is for a study file, got 'runs/counting'"),
        (["postgresql://me:secret@host/x"], "postgresql://***@host/x does not lie in a store"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments: list[str], message: str) -> None:
    done = command(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.stderr
