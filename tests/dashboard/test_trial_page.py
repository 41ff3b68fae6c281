"""The page of a trial, the tree and importance: the figures behind them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dasktune._dashboard.studies import Studies
from dasktune._dashboard.study_view import Kept
from dasktune.errors import ConfigurationError
from dasktune.storage.database.database import Batch, Database

from .made_study import BEGAN, Made, loss_at, made_database


@pytest.fixture
def studies(tmp_path: Path) -> Iterator[Studies]:
    """Return two studies of one trainer; the second has other trials of the same beginnings."""
    sizes = {"first": Made(trials=40, fails_every=10), "second": Made(trials=8)}
    with closing(Database(made_database(tmp_path, **sizes), create=False)) as database:
        yield Studies(database)


def test_trial_shows_sequences_reports_and_origins(studies: Studies) -> None:
    shown: Any = studies.view(1).trial(6)
    assert shown["sequences"]["lr"].startswith("MultiStep(")
    assert 'aria-label="lr over 20 steps"' in shown["plot"]
    assert "batch" not in shown["plot"]
    steps, values = shown["curves"]["accuracy"]
    assert (steps[-1], values[-1]) == (20, pytest.approx(20 / 29))
    # Trials 4 to 7 part after step 10, 11 and 12: each stage was trained for the first of them.
    own = [each for each in shown["stages"] if each["study"] == "first"]
    spans = [(each["start"], each["stop"], each["trials"]) for each in own]
    assert spans == [(0, 10, [4]), (10, 11, [5]), (11, 12, [6]), (12, 20, [6])]
    assert {each["study"] for each in shown["stages"]} == {"first", "second"}
    assert all(each["started"] >= BEGAN for each in own)
    assert [each["step"] for each in shown["states"]] == [10, 11, 12, 20]
    assert own[0]["log"].splitlines()[-1] == f"step 10: loss {loss_at(4, 10):.4f}"


def test_a_failed_trial_shows_the_users_line(studies: Studies) -> None:
    shown: Any = studies.view(1).trial(9)
    assert shown["state"] == "FAIL"
    assert shown["frames"] == (
        'File "/home/ann/tune.py", line 12, in train\nraise ValueError("too high")'
    )
    assert "site-packages" in shown["traceback"]


def test_lineage_names_the_users_of_all_studies(studies: Studies) -> None:
    found: Any = studies.view(1).lineage(6, studies.views())
    by_study = {
        name: [
            (each["start"], each["stop"], each["first"])
            for each in found["users"]
            if each["study"] == name
        ]
        for name in ("first", "second")
    }
    spans = [(0, 10, (4, 5, 6, 7)), (10, 11, (5, 6, 7)), (11, 12, (6, 7)), (12, 20, (6,))]
    assert by_study == {"first": spans, "second": spans}


def test_lineage_leaves_out_what_is_not_shown(tmp_path: Path) -> None:
    file = made_database(tmp_path, first=Made(trials=8), second=Made(trials=8))
    with closing(Database(file, create=False)) as database:
        studies = Studies(database, "first")
        found: Any = studies.view(1).lineage(6, studies.views())
        assert {each["study"] for each in found["users"]} == {"first"}


def test_an_unknown_trial_is_refused(studies: Studies) -> None:
    with pytest.raises(ConfigurationError, match="there is no trial 77"):
        studies.view(1).trial(77)


def test_tree_has_the_stages_with_their_parents(studies: Studies) -> None:
    tree: Any = studies.view(2).tree()
    assert tree["count"] == 8
    assert tree["parent"].count(-1) == 2
    for at, above in enumerate(tree["parent"]):
        assert above < at
        if above >= 0:
            assert tree["start"][at] == tree["stop"][above]
            assert tree["passing"][at] < tree["passing"][above]
    steps = sum(stop - start for start, stop in zip(tree["start"], tree["stop"], strict=True))
    assert steps == 2 * (10 + 10 + 1 + 9 + 1 + 8 + 8)
    assert tree["trained"] == tree["stop"]
    assert tree["values"][0].endswith("batch = 32") or "batch = 32" in tree["values"][0]


def test_tree_follows_the_trials_that_have_changed(tmp_path: Path) -> None:
    file = made_database(tmp_path, made=Made(trials=8, running=2))
    with closing(Database(file)) as database:
        view = Studies(database).view(1)
        view.tree()
        (row,) = database.some_trials(1, [7])
        database.write(Batch(trials=[replace(row, state="COMPLETE", steps=20, until=None)]))
        view.kept = Kept()  # as after ten seconds
        fresh: Any = Studies(database).view(1).tree()
        assert {**view.tree(), "version": 0} == {**fresh, "version": 0}


def test_importance_is_that_of_complete_trials(studies: Studies) -> None:
    found: Any = studies.view(1).importance()
    assert found["trials"] == 36
    assert {*found["names"]} == {"lr", "batch"}
    assert sum(found["shares"]) == pytest.approx(1)
    few: Any = studies.view(2).importance()
    assert few["why"] == "needs 10 complete trials whose values were drawn, 8 of 8 are such"


def test_points_are_columns_of_the_same_length(studies: Studies) -> None:
    points: Any = studies.view(1).points()
    assert {*points["params"]} == {"lr", "milestone", "batch"}
    lengths = {len(column) for column in (points["number"], *points["params"].values())}
    assert lengths == {36}


def test_a_running_trial_has_a_prediction(tmp_path: Path) -> None:
    file = made_database(tmp_path, made=Made(trials=20, running=4))
    with closing(Database(file, create=False)) as database:
        view = Studies(database).view(1)
        known: Any = view.prediction(17)
        assert known["metric"] == "loss"
        assert known["trials"] == 20
        assert 10 < known["steps"][0] <= known["steps"][-1] == 20
        for span in known["intervals"]:
            for (low, high), median in zip(span["ends"], known["medians"], strict=True):
                assert low <= median <= high
        assert "why" in view.prediction(3), "it has ended"


def test_studies_of_other_code_are_not_compared(tmp_path: Path) -> None:
    sizes = {"first": Made(trials=8), "second": Made(trials=8), "other": Made(shared=False)}
    with closing(Database(made_database(tmp_path, **sizes), create=False)) as database:
        studies = Studies(database)
        lineage: Any = studies.view(1).lineage(6, studies.views())
        assert (lineage["compared"], lineage["studies"]) == (["first", "second"], 3)
