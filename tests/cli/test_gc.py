"""dasktune gc: the states that go, those that stay, and the reasons; a dry run removes none."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

from dasktune.cli.gc import Collected, GcChoice, Request, collect, seconds_of
from dasktune.cli.ls import Places, View, read
from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.database.database import Database
from dasktune.storage.leases import HeldLeases, Leases
from dasktune.storage.retention import Keep
from dasktune.storage.verdicts import Verdicts
from dasktune.trainer.check_resume.verdict import verdict

from .conftest import UNIQUE, Folder

HOUR = 3600.0


def states(folder: Folder) -> set[str]:
    return set(CheckpointStore(str(folder.path / "runs/counting")).keys())


def of(found: Collected, kind: str) -> list[GcChoice]:
    return [one for one in found.choices if one.kind == kind]


def old_store(path: Path, *, states: int = 3) -> CheckpointStore:
    """Return a store whose states nobody knows, the first one the oldest; hours between."""
    store = CheckpointStore(str(path))
    store.check()
    for number in range(states):
        store.save(
            encode({"weight": np.zeros(1000)}), key=f"f{number}", attempt=f"{number}-aa", step=5
        )
        for one in (path / "checkpoints").glob(f"*/f{number}/**/*"):
            at = time.time() - HOUR * (10 - number)
            os.utime(one, (at, at))
    return store


@pytest.mark.cluster
def test_a_dry_run_explains_each_choice_and_changes_nothing(folder: Folder) -> None:
    assert folder.command("run", "counting.py", "--workers", "1").returncode == 0
    before = states(folder)
    asked = ("gc", "counting.py", "--budget", "5kB", "--grace", "0s")
    done = folder.command(*asked, "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    goes = [line for line in lines if line.startswith("goes  checkpoint ")]
    stays = [line for line in lines if line.startswith("stays checkpoint ")]
    others = [line for line in lines[:-1] if line not in {*goes, *stays}]
    assert len(others) <= 1, "the leases of the run that has ended"
    assert goes
    assert len(goes) + len(stays) == len(before)
    assert all("to train again: " in line and "likely to be asked for" in line for line in goes)
    assert "2% likely" in goes[0]
    assert sum("counting keeps best:1" in line for line in stays) == 1
    assert all(" counting/" in line for line in (*goes, *stays))
    assert f"would free {lines[-1].split('would free ')[1]}" in lines[-1]
    assert states(folder) == before
    listed = re.search(
        r"runs/counting: 6 checkpoints, (\S+ k?B)", folder.command("ls", "counting.py").stdout
    )
    assert listed is not None
    assert f"runs/counting: {listed[1]} in " in lines[-1], "ls and gc count alike"

    done = folder.command(*asked, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    choices = [one for one in document["choices"] if one["kind"] == "checkpoint"]
    gone = {one["name"] for one in choices if one["goes"]}
    assert len(gone) == len(goes)
    assert states(folder) == before - gone
    assert document["nbytes_before"] - document["nbytes_freed"] <= 5000
    database = Database(folder.path / "runs/counting/dasktune.db", create=False)
    assert database.checkpoint_keys() == states(folder)
    database.close()
    # The study does not miss them: what was reported is known.
    trained = len(folder.steps())
    assert folder.command("run", "counting.py", "--workers", "1").returncode == 0
    assert len(folder.steps()) == trained == UNIQUE


@pytest.mark.cluster
def test_gc_young_states_over_the_budget_stay_and_exit_code_is_1(folder: Folder) -> None:
    assert folder.command("run", "counting.py", "--workers", "1").returncode == 0
    done = folder.command("gc", "counting.py", "--budget", "1", "--dry-run")
    assert done.returncode == 1
    assert done.stdout.count("younger than 1 h") >= 5
    assert "over the budget of 1 B: all that stays is in use or young" in done.stdout


@pytest.mark.process
def test_gc_reports_all_wrong_options_together(folder: Folder) -> None:
    old_store(folder.path / "store")
    done = folder.command("gc", "store", "--budget", "1x", "--keep", "few", "--grace", "soon")
    assert done.returncode == 2
    assert [line[:18] for line in done.stderr.splitlines()] == [
        "error: - budget mu",
        "- keep must be 'be",
        "- grace must be a ",
    ]
    assert folder.command("gc", "nowhere").returncode == 2


def test_gc_keeps_the_verdicts_of_resume_checks(tmp_path: Path) -> None:
    store = old_store(tmp_path)
    failed = verdict("f0" * 16, "cpu", ok=False, text="state['x'] differs")
    Verdicts(None, store.files).record(failed)
    collect(Request(store=str(tmp_path), database=None, budget=1, grace=0.0, removes=True))
    assert not list(store.keys())
    assert Verdicts(None, store.files).of(failed.fingerprint) == [failed]


@pytest.mark.usefixtures("files_of_their_own")
def test_without_a_database_the_oldest_go_first(tmp_path: Path) -> None:
    store = old_store(tmp_path)
    found = collect(Request(store=str(tmp_path), database=None, budget=20_000, removes=True))
    assert [one.name for one in found.choices if one.goes] == ["f0"]
    assert set(store.keys()) == {"f1", "f2"}
    assert "of no study here, used 10 h 0 min ago" in str(found.choices[0])
    assert "no database: what studies want and keep is not known" in str(found)
    again = collect(Request(store=str(tmp_path), database=None, budget=20_000, removes=True))
    assert again.freed == 0
    assert again.is_done


def test_gc_without_a_budget_removes_only_orphans(tmp_path: Path) -> None:
    store = old_store(tmp_path)
    now = time.time()
    part = {"c.0": [np.zeros(500, np.uint8)]}
    store.files.write("checkpoints/ab/abcd/0-cc/step-5", part)
    store.files.write("checkpoints/ef/efgh/0-dd/step-5", part)
    ages = {"checkpoints/ab": 2 * HOUR, "checkpoints/ef": 60.0}
    for folder, age in ages.items():
        for one in (tmp_path / folder).glob("**/*"):
            os.utime(one, (now - age, now - age))
    store.files.create(layout.commit_path("beef"), b"its data were removed by hand")
    leftovers = [
        f"{layout.commit_path('f0')}.{'0a' * 16}",
        layout.commit_path("abcd") + layout.MARK,
    ]
    for leftover in leftovers:
        store.files.create(leftover, b"of a process that was killed")
        os.utime(tmp_path / leftover, (now - 2 * HOUR, now - 2 * HOUR))
    request = Request(store=str(tmp_path), database=None)
    found = collect(request)
    assert {(one.goes, one.name) for one in of(found, "upload")} == {
        (True, "abcd"),
        (False, "efgh"),
    }
    assert [(one.goes, one.name) for one in of(found, "commit")] == [(True, "beef")]
    assert {(one.goes, one.name) for one in of(found, "file")} == {
        (True, leftover) for leftover in leftovers
    }
    assert not any(one.goes for one in of(found, "checkpoint"))
    found = collect(Request(store=str(tmp_path), database=None, removes=True))
    assert found.is_done
    assert {one.key for one in store.inventory()} == {"f0", "f1", "f2", "efgh"}
    assert store.files.read("", leftovers) == [None, None]
    assert [store.load(key)[1].step for key in ("f0", "f1", "f2")] == [5, 5, 5]


@pytest.mark.usefixtures("files_of_their_own")
@pytest.mark.parametrize("skew", [-540.0, 540.0])
def test_gc_measures_ages_by_the_clock_of_the_store(
    skew: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = old_store(tmp_path, states=2)
    for number, age in enumerate((360.0, 240.0)):
        store.files.remove(layout.commit_path(f"f{number}"))
        for path in (tmp_path / "checkpoints").glob(f"*/f{number}/**/*"):
            os.utime(path, (time.time() - age,) * 2)
    wrong = time.time() + skew
    monkeypatch.setattr("dasktune.cli.gc.time.time", lambda: wrong)
    request = Request(store=str(tmp_path), database=None, budget=None, grace=300.0, removes=True)
    goes = {choice.name: choice.goes for choice in of(collect(request), "upload")}
    assert goes == {"f0": True, "f1": False}


def test_gc_removes_a_losing_upload_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    store = old_store(tmp_path, states=1)
    store.files.write("checkpoints/f0/f0/9-zz/step-5", {"c.0": [np.zeros(500, np.uint8)]})
    for one in (tmp_path / "checkpoints/f0/f0/9-zz").glob("**/*"):
        os.utime(one, (1.0, 1.0))
    found = collect(Request(store=str(tmp_path), database=None, removes=True))
    assert [(one.name, one.attempt) for one in found.choices if one.goes] == [("f0", "9-zz")]
    assert store.load("f0")[1].attempt == "0-aa"
    assert list(next(iter(store.inventory())).attempts) == ["0-aa"]


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        (None, "there is no store at"),
        ("{}", "its dasktune.json is not that of a store"),
        (
            '{"format": "dasktune-store", "version": 9, "name": "x"}',
            "must have version 1, got 9: it was made by a later version of dasktune",
        ),
    ],
)
def test_gc_refuses_a_folder_without_the_marker_of_this_version(
    tmp_path: Path, marker: str | None, message: str
) -> None:
    store = old_store(tmp_path)
    (tmp_path / layout.MARKER).unlink()
    if marker is not None:
        (tmp_path / layout.MARKER).write_text(marker)
    places = Places(store=str(tmp_path), database=None)
    with pytest.raises(StorageError, match=message):
        collect(Request(store=str(tmp_path), database=None, budget=1, removes=True))
    with pytest.raises(StorageError, match=message):
        read(places, View())
    assert set(store.keys()) == {"f0", "f1", "f2"}


def test_gc_keeps_foreign_files(tmp_path: Path) -> None:
    store = old_store(tmp_path, states=1)
    theirs = ["ab/Ab_cd/1-aa/step-3/c.0", "ab/Ab_cd/commit", "run/abcd/1-aa/step-3/c.0"]
    theirs += ["ab/abcd/1-aa/60/c.0", "ab/abcd/.DS_Store/step-3/c.0"]
    for one in theirs:
        path = tmp_path / layout.ROOT / one
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"theirs")
        os.utime(path, (1.0, 1.0))
    found = collect(Request(store=str(tmp_path), database=None, budget=1, removes=True))
    assert [one.name for one in found.choices] == ["f0"]
    assert list(store.inventory()) == []
    assert all((tmp_path / layout.ROOT / one).is_file() for one in theirs)


def test_leases_go_that_ended_long_ago(tmp_path: Path) -> None:
    store = old_store(tmp_path, states=1)
    leases, now = Leases(store.files), time.time()
    for holder, age in (("dead", -5 * HOUR), ("ended", -60), ("live", 60)):
        leases.hold(HeldLeases(holder=holder, study="s", expires=now + age))
    found = collect(Request(store=str(tmp_path), database=None, removes=True))
    assert [one.name for one in of(found, "lease")] == ["drivers/dead"]
    assert sorted(leases.holders()) == ["ended", "live"]


@pytest.mark.parametrize("folder", [layout.SAVE_REQUESTS, *layout.EARLIER])
def test_gc_removes_what_drivers_wrote_a_day_ago(tmp_path: Path, folder: str) -> None:
    store = old_store(tmp_path, states=1)
    for name, age in (("old", 30 * HOUR), ("young", 20 * HOUR)):
        path = f"{folder}/{name}-0"
        store.files.create(path, b"[]")
        when = time.time() - age
        os.utime(tmp_path / path, (when, when))
    collect(Request(store=str(tmp_path), database=None, removes=True))
    assert [one.name for one in (tmp_path / folder).iterdir()] == ["young-0"]


def test_gc_keeps_the_save_requests_of_a_driver_that_runs(tmp_path: Path) -> None:
    store, path = old_store(tmp_path, states=1), layout.save_request_path("live")
    Leases(store.files).hold(HeldLeases(holder="live", study="s", expires=time.time() + 60))
    store.files.create(path, b"[]")
    os.utime(tmp_path / path, (1.0, 1.0))
    collect(Request(store=str(tmp_path), database=None, removes=True))
    assert (tmp_path / path).is_file()


@pytest.mark.cluster
def test_what_a_running_trial_goes_on_from_stays(folder: Folder) -> None:
    folder.hold(at=8)
    process = folder.start("run", "counting.py", "--workers", "1", "--config", "pause=0.2")
    folder.wait_for_steps(7, process)
    folder.wait_until(lambda: bool(states(folder)), process)
    process.kill()
    folder.go_on(at=8)
    process.communicate()
    store, database = "runs/counting", "runs/counting/dasktune.db"
    place = Request(
        store=str(folder.path / store),
        database=str(folder.path / database),
        budget=1,
        keep=Keep.parse("none"),
        grace=0.0,
    )
    found = collect(place, time.time() + 10 * HOUR)
    held = [one for one in of(found, "checkpoint") if not one.goes]
    assert held
    assert {one.reason for one in held} == {"counting goes on from it"}
    assert not found.is_done


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("30m", 1800.0), (" 1.5 h ", 5400.0), ("2d", 172800.0)]
)
def test_times_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1w", "1h30m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="grace must be a time such as"):
        seconds_of(text)
