"""Studies on workers of several numeric classes: real clusters, processes and stores."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune._driver.connection import Connection
from dasktune.errors import ClusterError, ConfigurationError
from dasktune.sequences import Piecewise
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.trainer.environment import NUMERICS
from tests.unlike_workers import unlike_processes

ONE, OTHER = {"DASKTUNE_NUMERICS": "one"}, {"DASKTUNE_NUMERICS": "other"}
STEPS = 8
STEPS_OF_A_LINEAGE = 13
"""Of two trials: three steps of both, and five of each."""

INTEL, ARM = {"DASKTUNE_NUMERICS": "cpu x86_64"}, {"DASKTUNE_NUMERICS": "cpu aarch64"}


class Rounding(dt.Trainer):
    """Counts the steps that it trained on each numeric class, as if the classes rounded so."""

    def build(self, hp: Any) -> None:
        self.steps = [0.0, 0.0]

    def setup(self, hp: Any) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        is_other = os.environ.get("DASKTUNE_NUMERICS") in ("other", "cpu aarch64")
        self.steps[is_other] += self.lr

    def evaluate(self) -> dict[str, float]:
        return {"one": self.steps[0], "other": self.steps[1]}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": list(self.steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = list(state["steps"])


class StopAtFirstTrial(dt.Callback):
    """Ends the run when a trial has ended: a limit may be reached before any trial has begun."""

    def on_trial_end(self, study: Any, trial: Any) -> None:
        study.stop()


def study(folder: Path, name: str = "s", **arguments: Any) -> dt.Study:
    return dt.create_study(
        Rounding,
        name=name,
        metric="one",
        direction="minimize",
        storage=str(folder),
        load_if_exists=True,
        **arguments,
    )


def tuner(trials: int = 6) -> dt.algos.Grid:
    """Return a tuner of three lineages, the trials of each parting at step 3 or 5."""
    lr = [Piecewise([1 + each % 3, 9], [3 + each // 3 * 2]) for each in range(trials)]
    return dt.algos.Grid(dt.Space(lr=lr), max_steps=STEPS)


def optimize(of: dt.Study, *environments: dict[str, str], **arguments: Any) -> None:
    with unlike_processes(*environments) as client:
        of.optimize(
            tuner(), client=client, check=False, progress=False, last_line=False, **arguments
        )


def classes_of(of: dt.Study) -> list[set[str]]:
    """Return the classes that each trial was trained on, by what its metrics count."""
    return [{name for name, steps in trial.metrics[STEPS].items() if steps} for trial in of.trials]


@pytest.mark.process
def test_no_trial_is_trained_on_two_classes(tmp_path: Path) -> None:
    mixed = study(tmp_path)
    optimize(mixed, ONE, OTHER)
    classes = classes_of(mixed)
    assert {"one"} in classes
    assert {"other"} in classes, "neither stays idle"
    assert all(len(each) == 1 for each in classes)
    assert classes[:3] == classes[3:], "trials that share a trunk go together"
    summary = mixed.summary()
    assert (summary["steps_repeated"], summary["steps_executed"]) == (0, summary["steps_unique"])
    for commit in commits_of(tmp_path):
        assert commit.environment[NUMERICS] in ("one", "other")


@pytest.mark.process
def test_study_on_another_class_trains_its_own_states(tmp_path: Path) -> None:
    first, second, third = (study(tmp_path, name) for name in ("first", "second", "third"))
    optimize(first, ONE)
    optimize(second, OTHER)
    assert classes_of(first) == [{"one"}] * 6
    assert classes_of(second) == [{"other"}] * 6
    assert second.summary()["steps_executed"] == first.summary()["steps_executed"]
    optimize(third, OTHER)
    assert third.summary()["steps_executed"] == 0, "states of its own class serve it"
    assert [trial.metrics for trial in third.trials] == [trial.metrics for trial in second.trials]
    reopened = study(tmp_path, "second")
    assert [trial.metrics for trial in reopened.trials] == [t.metrics for t in second.trials]
    assert reopened.trial_state(0)["steps"][0] == 0.0


@pytest.mark.process
def test_trials_go_on_where_they_began_in_the_next_run(tmp_path: Path) -> None:
    limits = dt.Limits(steps=12)
    optimize(study(tmp_path), ONE, OTHER, limits=limits)
    again = study(tmp_path)
    optimize(again, OTHER, ONE)
    classes = classes_of(again)
    assert all(len(each) == 1 for each in classes)
    assert classes[:3] == classes[3:]


@pytest.mark.process
def test_study_whose_class_is_gone_is_refused_by_name(tmp_path: Path) -> None:
    optimize(study(tmp_path), ONE, callbacks=[StopAtFirstTrial()])
    with pytest.raises(ClusterError, match="numeric class 'one', on which its steps began"):
        optimize(study(tmp_path), OTHER)


@pytest.mark.process
def test_begun_trial_waits_for_its_class_if_workers_are_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers answer after the run has begun, as slow ones may."""
    first = study(tmp_path)
    optimize(first, ONE, callbacks=[StopAtFirstTrial()])
    begun = {trial.number % 3 for trial in first.trials if trial.steps}
    used = first.summary()["steps_executed"]
    opened = Connection.open

    def late(connection: Connection, patience: float | None = None) -> Any:
        for event in (yield from opened(connection, patience)):
            connection.workers._put(event)
        return []

    monkeypatch.setattr(Connection, "open", late)
    again = study(tmp_path)
    may_train = (3 - len(begun)) * STEPS_OF_A_LINEAGE  # the others wait, as the limit is below
    optimize(again, OTHER, limits=dt.Limits(steps=used + may_train - 2))
    went_on = {
        trial.number % 3
        for trial in again.trials
        if any(values["other"] for values in trial.metrics.values())
    }
    assert begun
    assert went_on == {0, 1, 2} - begun


@pytest.mark.process
def test_portable_trials_may_change_their_class(tmp_path: Path) -> None:
    one, other = ({**each, "DASKTUNE_CLASS": name} for each, name in ((ONE, "a"), (OTHER, "b")))
    optimize(study(tmp_path, portable=True), one, callbacks=[StopAtFirstTrial()])
    again = study(tmp_path, portable=True)
    optimize(again, other)
    assert {"one", "other"} in classes_of(again)
    changed = {number for number, each in enumerate(classes_of(again)) if len(each) > 1}
    told = again.summary()["trials_on_several_classes"]
    assert {each["trial"] for each in told} == changed
    assert all(each["classes"] == ["a", "b"] for each in told)
    assert {each.environment[NUMERICS] for each in commits_of(tmp_path)} == {"one", "other"}


@pytest.mark.process
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
def test_exact_study_takes_no_state_of_mixed_architectures(tmp_path: Path, is_first: bool) -> None:
    """A study for which all CPUs are one class may train a trial on two architectures."""
    if not is_first:
        optimize(study(tmp_path, "exact", portable=False), INTEL)
    mixed = study(tmp_path, "mixed")
    optimize(mixed, INTEL, limits=dt.Limits(steps=12))
    optimize(mixed, ARM)
    assert {"one", "other"} in classes_of(mixed)
    exact = study(tmp_path, "other exact", portable=False)
    optimize(exact, INTEL)
    assert classes_of(exact) == [{"one"}] * 6
    executed = exact.summary()["steps_executed"]
    assert executed == (mixed.summary()["steps_unique"] if is_first else 0), "nothing is lost"


@pytest.mark.process
def test_exact_study_of_an_earlier_record_goes_on(tmp_path: Path) -> None:
    """Earlier versions recorded an architecture also where all CPUs were one class."""
    optimize(study(tmp_path, portable=False), INTEL, callbacks=[StopAtFirstTrial()])
    [record] = (tmp_path / "classes").iterdir()
    document = {**json.loads(record.read_text()), "version": 1}
    assert document["class"] == "cpu x86_64"
    record.write_text(json.dumps(document))
    again = study(tmp_path, portable=False)
    begun = sum(trial.steps for trial in again.trials)
    optimize(again, INTEL)
    assert begun
    summary = again.summary()
    assert summary["steps_repeated"] == 0
    assert summary["steps_executed"] < summary["steps_unique"] + 12, "begun trials go on"
    other = study(tmp_path, "other", portable=False)
    optimize(other, INTEL)
    assert other.summary()["steps_executed"] > 0, "what began before may be of another class"


def commits_of(folder: Path) -> list[Any]:
    """Return the commits of a store."""
    store = CheckpointStore(str(folder))
    return list(store.commits(store.keys()).values())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"portable": "yes"}, "portable must be True, False or None"),
        ({"portable": 1}, "portable must be True, False or None"),
        ({"portable": True, "reuse": "exact"}, "portable must be False or None with reuse="),
    ],
)
def test_impossible_portable_is_refused(
    tmp_path: Path, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        study(tmp_path, **arguments)


def test_study_keeps_what_portable_it_was_created_with(tmp_path: Path) -> None:
    study(tmp_path)
    with pytest.raises(ConfigurationError, match="created with portable None, got portable True"):
        study(tmp_path, portable=True)
