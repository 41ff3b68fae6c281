"""After an audit found a difference: the study goes on, and trains each trial alone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

import dasktune as dt
from dasktune._driver.audits import Audits
from dasktune._driver.parts import Following
from dasktune._engine.trials import Trial
from dasktune._results.inventory import take_inventory
from dasktune._results.keep import kept_keys
from dasktune._study.first_check import TrainerChecks
from dasktune._study.study import Study
from dasktune.algos.base import Tuner
from dasktune.cli.options import FAILED
from dasktune.cli.results import as_text
from dasktune.cli.run import _print_results
from dasktune.cli.status import read
from dasktune.errors import ConfigurationError, StorageError, TrainerError
from dasktune.sequences import Constant, MultiStep
from dasktune.storage.retention import Keep
from dasktune.storage.verdicts import Verdicts
from dasktune.trainer.check_resume.verdict import verdict
from dasktune.trainer.check_switch import SWITCH
from dasktune.trainer.isolation import give_own_generator
from dasktune.trainer.lifecycle import run_alone
from dasktune.types import HyperParameters, Report
from tests.toy_trainers import Adding

STEPS = 40
RATES = [
    Constant(0.1),
    *(MultiStep(0.1, milestones=[at], gamma=0.5) for at in (10, 14, 18, 20, 22, 26, 30, 33)),
]


class Accumulating(Adding):
    """Sums up what 8 steps add before it counts them; calls the sum harmless, and is wrong."""

    harmless_differences = ("trainer.sum",)

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.steps, self.sum, self.counted = 0, 0.0, 0.0

    def train(self) -> None:
        super().train()
        self.steps += 1
        self.sum += self.lr
        if self.steps % 8 == 0:
            self.counted, self.sum = self.counted + self.sum, 0.0

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.counted}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "steps": self.steps, "counted": self.counted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.total, self.steps, self.counted = state["total"], state["steps"], state["counted"]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Return a client of one worker in this process, which trains in one thread."""
    give_own_generator()
    with (
        LocalCluster(
            processes=False,
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            protocol="tcp://",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as connected,
    ):
        yield connected


@pytest.fixture(autouse=True)
def checks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "on")


@pytest.fixture
def create(tmp_path: Path) -> Iterator[Callable[..., Study]]:
    """Return a function that creates or opens a study whose trainer a check has passed."""
    studies: list[Study] = []

    def make(name: str = "going on", **options: Any) -> Study:
        options = {"metric": "loss", "load_if_exists": True, **options}
        study = dt.create_study(Accumulating, name=name, storage=tmp_path, **options)
        studies.append(study)
        fingerprint = study.results.row.spec["fingerprint"]
        verdicts = Verdicts(study.results.database, study.results.store.files)
        if not verdicts.of(fingerprint):
            verdicts.record(verdict(fingerprint, "cpu", ok=True, text="passed"))
        return study

    yield make
    for study in studies:
        study.close()


@pytest.fixture
def late_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin no audit before all trials have ended."""
    turn = Audits.turn

    def turn_at_end(audits: Audits, now: float) -> list[Following]:
        return turn(audits, now) if audits.is_last else []

    monkeypatch.setattr(Audits, "turn", turn_at_end)


def grid(steps: int = STEPS) -> Tuner:
    return dt.algos.Grid(dt.Space(lr=RATES), max_steps=steps)


def few() -> Tuner:
    return dt.algos.Grid(dt.Space(lr=RATES[:3]), max_steps=STEPS)


def halving() -> Tuner:
    space = dt.Space(lr=RATES)
    return dt.algos.ASHA(space, max_steps=STEPS, min_steps=10, eta=2, trials=20, seed=0)


def is_exact(trial: Trial) -> bool:
    """Whether all metrics of a trial are those of the trial alone, bit for bit."""
    lone = run_alone(Accumulating, trial.sequences, trial.steps)
    return dict(trial.metrics) == lone.metrics


def alone_since(study: Study) -> list[int]:
    """Return the trials that were trained alone."""
    return [number for number, record in study.results.records.items() if record.alone is not None]


def check_all_alone(study: Study, make: Callable[[], Tuner]) -> None:
    """Check that no trial is marked, and that each has the metrics of the trial alone."""
    summary = study.summary()
    assert summary["withdrawn"] == {"trials": [], "others": 0}
    assert alone_since(study) == [trial.number for trial in study.trials]
    assert all(map(is_exact, study.trials))
    for trial in study.trials:
        assert trial.value == trial.metrics[trial.steps]["loss"]
    assert study.replay(make()).identical
    check_figures(study)


def check_figures(study: Study) -> None:
    """Check that every trained step has its place in the summary."""
    summary = study.summary()
    others = summary["steps_repeated"] + summary["steps_withdrawn"]
    assert summary["steps_executed"] == summary["steps_unique"] + others
    assert summary["steps_reused"] == 0


@pytest.mark.parametrize("make", [grid, halving])
def test_study_goes_on_and_trains_trials_alone(
    make: Callable[[], Tuner],
    create: Any,
    client: Client,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = create()
    study.optimize(make(), client=client, progress=False)
    (message,) = [text for text in caplog.messages if "merges nothing" in text]
    assert message.startswith("Accumulating must resume exactly for its trials to be merged. audit")
    alone = [study.trials[number] for number in alone_since(study)]
    assert alone
    assert all(map(is_exact, alone))
    assert {trial.steps for trial in alone} <= {10, 20, STEPS}
    check_figures(study)
    assert study.replay(make()).identical
    text = capsys.readouterr().err
    assert "; audited 1 " in text
    has_withdrawn = study.summary()["steps_withdrawn"] > 0
    assert (" withdrawn)" in text) == has_withdrawn, "an early audit may find it first"
    keys = {study.plan.nodes_of(trial.number)[0].key_at(0) for trial in alone}
    assert len(keys) == len(alone), "each has keys of its own"
    assert not {trial.number for trial in alone} & {*study.summary()["withdrawn"]["trials"]}


def test_states_of_trials_alone_are_found_again(create: Any, client: Client) -> None:
    study = create()
    study.optimize(grid(), client=client, progress=False)
    number = alone_since(study)[-1]
    sequences = study.trials[number].sequences
    lone = run_alone(Accumulating, sequences, STEPS, states_at=(20, STEPS))
    for step in (STEPS, 20):  # the second is not stored: no stored state may be its beginning
        assert study.trial_state(number, step) == lone.states[step]
    results = study.results
    inventory = take_inventory(results.store, results.database)
    assert inventory.strangers == []
    key = study.plan.node_at(number, STEPS).key_at(STEPS)
    assert [each.owners for each in inventory.holdings if each.key == key] == [
        {"going on": (number,)}
    ]
    assert key in kept_keys(results.database, results.row, Keep.parse("best:9"))


def test_trials_that_have_ended_stay_and_are_marked(
    create: Any, client: Client, tmp_path: Path, late_audits: None
) -> None:
    study = create()
    study.optimize(few(), client=client, progress=False)
    assert alone_since(study) == []
    marked = study.summary()["withdrawn"]["trials"]
    assert [trial.number for trial in study.trials if not is_exact(trial)] == marked
    assert 1 <= len(marked) <= 2, "one was trained without a resume"
    named = "on a withdrawn metric; "
    status = read(str(tmp_path))[0]
    assert named in str(status)
    assert status.to_json()["withdrawn"]["trials"] == tuple(marked)
    assert named in as_text(study, study.trials)
    assert as_text(study, study.trials).count("complete, withdrawn") == len(marked)
    assert _print_results(study, None, as_json=True) == FAILED
    page = study.report().read_text()
    assert named in page
    assert f'"withdrawn":{{"trials":[{",".join(map(str, marked))}]' in page


def test_tuner_that_has_ended_stays_so(create: Any, client: Client, late_audits: None) -> None:
    study = create()
    for _ in range(2):
        study.optimize(few(), client=client, progress=False)
        summary = study.summary()
        assert summary["withdrawn"]["trials"]
        assert (summary["audits"]["differing"], summary["steps_withdrawn"]) == (1, 0)


def few_halved() -> Tuner:
    return dt.algos.StoppingASHA(
        dt.Space(lr=RATES[:3]), max_steps=STEPS, min_steps=10, eta=2, trials=12, seed=0
    )


@pytest.mark.parametrize("make", [few, few_halved])
def test_withdrawn_trials_are_trained_again_alone(
    make: Callable[[], Tuner], create: Any, client: Client, tmp_path: Path, late_audits: None
) -> None:
    study = create()
    assert study.retrain_withdrawn() == [], "no audit has found anything"
    study.optimize(make(), client=client, progress=False)
    ended = [(trial.state, trial.steps) for trial in study.trials]
    assert "--retrain-withdrawn" in str(read(str(tmp_path))[0])
    log = study.log(make())
    marked = study.summary()["withdrawn"]
    asked = study.retrain_withdrawn()
    assert len(asked) == len(marked["trials"]) + marked["others"] == len(study.trials)
    ends: list[tuple[int, float]] = []

    class Ends(dt.Callback):
        def on_trial_end(self, study: Any, trial: Trial) -> None:
            ends.append((trial.number, trial.values[0]))

    study.optimize(make(), client=client, progress=False, callbacks=[Ends()])
    check_all_alone(study, make)
    assert [(trial.state, trial.steps) for trial in study.trials] == ended
    assert sorted(ends) == [(trial.number, trial.value) for trial in study.trials]
    lowest = min(study.trials, key=lambda trial: trial.value)
    assert study.best_trial.value == lowest.value
    assert study.summary()["best_value"] == lowest.value
    assert "--retrain-withdrawn" not in str(read(str(tmp_path))[0])
    assert _print_results(study, None, as_json=True) == 0
    assert study.log(make())[: len(log)] == log, "the log stays"
    assert study.retrain_withdrawn() == []
    executed = study.summary()["steps_executed"]
    study.optimize(make(), client=client, progress=False)
    assert study.summary()["steps_executed"] == executed


class Dies(dt.Callback):
    """Ends the run at its first report; training waits for it at the third set of values."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_reported = threading.Event()
        made, begin = itertools.count(1), HyperParameters.__init__

        def begin_held(given: HyperParameters, *values: Any) -> None:
            if next(made) > 2:
                assert self.has_reported.wait(60)
            begin(given, *values)

        monkeypatch.setattr(HyperParameters, "__init__", begin_held)

    def on_report(self, study: Any, trial: Trial, report: Report) -> None:
        self.has_reported.set()
        raise StorageError("the database is gone")


def test_killed_retraining_goes_on(
    create: Any, client: Client, late_audits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = create()
    study.optimize(grid(), client=client, progress=False)
    assert len(study.retrain_withdrawn()) == len(RATES)
    with pytest.raises(StorageError, match="gone"):
        study.optimize(grid(), client=client, progress=False, callbacks=[Dies(monkeypatch)])
    withdrawn = study.summary()["withdrawn"]
    assert 1 <= len(withdrawn["trials"]) + withdrawn["others"] < len(RATES)
    study = create()
    study.optimize(grid(), client=client, progress=False)
    check_all_alone(study, grid)


def test_killed_driver_goes_on_alone(
    create: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies once the difference is noted, and again while trials are trained alone."""

    def die(*_: object) -> None:
        raise StorageError("the database is gone")

    with monkeypatch.context() as broken:
        broken.setattr(TrainerChecks, "record_audit", die)
        with pytest.raises(TrainerError, match="audit failed"):
            create().optimize(grid(), client=client, progress=False)
    study = create()
    assert alone_since(study) == []
    some = dt.Limits(steps=study.summary()["steps_executed"] + STEPS + 5)
    study.optimize(grid(), client=client, progress=False, limits=some)
    begun = alone_since(study)
    assert begun
    study = create()
    study.optimize(grid(), client=client, progress=False)
    alone = [study.trials[number] for number in alone_since(study)]
    assert set(begun) <= {trial.number for trial in alone}
    assert all(map(is_exact, alone))
    assert {trial.state.value for trial in study.trials} == {"COMPLETE"}
    check_figures(study)
    assert study.replay(grid()).identical
    with pytest.raises(ConfigurationError, match="audit failed"):
        create("other").optimize(grid(), client=client, progress=False)


def test_limit_ends_a_study_that_goes_on(create: Any, client: Client) -> None:
    """Two stages of 400 steps may be under way when the difference, or the limit, is heard of."""
    study = create()
    study.optimize(grid(400), client=client, progress=False, limits=dt.Limits(steps=2400))
    assert study.limit is not None
    assert study.limit.endswith(" of 2,400 steps were trained")
    assert alone_since(study)
    notes = {note["run"]: note["steps"] for note in study.results.runs()}
    assert len(notes) == 2
    assert sum(notes.values()) == study.summary()["steps_executed"] >= 2400


def test_next_tuner_of_the_study_trains_alone(
    create: Any, client: Client, caplog: pytest.LogCaptureFixture, late_audits: None
) -> None:
    study = create()
    study.optimize(few(), client=client)
    before = len(study.trials)
    caplog.clear()
    study.optimize(grid(STEPS - 1), client=client, progress=False)
    (message,) = [text for text in caplog.messages if "trains each trial alone" in text]
    assert "audit failed" in message
    assert alone_since(study) == list(range(before, before + len(RATES)))
    assert all(map(is_exact, study.trials[before:]))
    study.optimize(grid(STEPS - 2), client=client, progress=False, allow_failed_check=True)
    assert len(alone_since(study)) == len(RATES), "merged again, as asked for"
