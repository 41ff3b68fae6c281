"""Runs of trials for loggers: each step in one of them, also after a crash."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import dasktune as dt
from dasktune._engine.trials import Alone, TrialRecord
from dasktune.errors import ConfigurationError, StorageError
from dasktune.graph.plan import SearchPlan
from dasktune.mirror import LoggedStudy, Logger, TrialRun
from dasktune.mirror.loggers import LoggerFeed
from dasktune.mirror.runs import Runs, SharedSteps
from dasktune.sequences import Constant, MultiStep
from dasktune.types import Objective, Step, TrialState

STUDY = LoggedStudy(
    id="0123456789abcdef", name="net", objective=Objective.single("loss", "minimize")
)
STEPS = 8
NEVER = 1e6
"""Seconds between two times of writing: only closing writes."""


def record(number: int, change: Step | None = None, **more: object) -> TrialRecord:
    """Return a complete trial whose rate changes at a step."""
    rate = Constant(1.0) if change is None else MultiStep(1.0, milestones=[change], gamma=0.5)
    end = {"state": TrialState.COMPLETE, "steps": STEPS, "values": (0.5,), **more}
    return TrialRecord(
        number=number,
        tuner=0,
        local=number,
        params={"lr": rate, "width": 3},
        sequences={"lr": rate, "width": Constant(3)},
        max_steps=STEPS,
        **end,  # type: ignore[arg-type]
    )


def plan_of(*records: TrialRecord) -> SearchPlan:
    """Return a plan in which all steps up to the last of each trial have metrics."""
    plan = SearchPlan("00" * 16)
    for each in records:
        plan.register(each.number, each.sequences, STEPS)
    for each in records:
        for step in range(1, each.steps + 1):
            node = plan.node_at(each.number, step)
            plan.learn(node, step, metrics={"loss": node.sequences["lr"](step - 1) / step})
    return plan


def steps_of(runs: Runs, plan: SearchPlan, *records: TrialRecord) -> list[list[Step]]:
    return [[*runs.of(plan, each).metrics] for each in records]


def test_each_shared_step_is_in_one_run() -> None:
    records = record(0), record(1, 4), record(2, 6), record(3, 4)
    plan = plan_of(*records)
    runs = [Runs(STUDY, {}, plan, records)] * 4
    made = [each.of(plan, trial) for each, trial in zip(runs, records, strict=True)]
    assert [[*run.metrics] for run in made] == [
        *([1, 2, 3, 4, 5, 6, 7, 8], [5, 6, 7, 8], [7, 8], []),
    ]
    shared = SharedSteps(first=1, last=4, trial=0), SharedSteps(first=5, last=8, trial=1)
    assert made[3].shared == shared
    assert (made[3].shared_until, made[3].shared_with) == (8, (0, 1))
    assert made[1].hp[5] == {"lr": 0.5}
    assert made[0].hp == {}
    assert made[0].params == {"lr": '"Constant(1.0)"', "width": 3}
    assert made[3].tags() == {
        "trial": "3",
        "state": "COMPLETE",
        "steps": "8",
        "shared_until": "8",
        "shared_with": "0, 1",
        "shared": "steps 1-4: trial 0; steps 5-8: trial 1",
    }


def test_a_step_stays_in_the_run_that_has_it() -> None:
    first = record(0, state=TrialState.PAUSED, steps=2)
    second = record(1, 6)
    plan = plan_of(first, second)
    runs = Runs(STUDY, {}, plan, [first, second])
    assert steps_of(runs, plan, first, second) == [[1, 2], [3, 4, 5, 6, 7, 8]]
    promoted = record(0)
    for step in range(1, STEPS + 1):
        plan.learn(plan.node_at(0, step), step, metrics={"loss": 1.0})
    assert steps_of(runs, plan, promoted) == [[7, 8]]
    # Another process asks the logger where they are, and begins with the lowest number.
    written = {STUDY.run_id(first): {1, 2}, STUDY.run_id(second): {3, 4, 5, 6, 7, 8}}
    again = Runs(STUDY, written, plan, [promoted, second])
    assert steps_of(again, plan, promoted, second) == [[7, 8], []]


def test_only_new_metrics_of_a_running_trial_come() -> None:
    running = record(0, state=TrialState.RUNNING, steps=0, until=STEPS)
    plan = plan_of(running)
    runs = Runs(STUDY, {}, plan, [running])
    for step in (1, 2):
        plan.learn(plan.node_at(0, step), step, metrics={"loss": 1.0})
    assert steps_of(runs, plan, running, running) == [[1, 2], []]
    plan.learn(plan.node_at(0, 4), 4, metrics={"loss": 1.0})
    assert steps_of(runs, plan, running) == [[4]]
    plan.learn(plan.node_at(0, 3), 3, metrics={"loss": 1.0})  # found in the store
    assert steps_of(runs, plan, replace(running, state=TrialState.PRUNED)) == [[3]]


def test_a_trial_trained_again_alone_has_a_run_of_its_own() -> None:
    alone = record(0, alone=Alone())
    assert STUDY.run_id(alone) == f"{STUDY.run_id(record(0))}-alone"


class Remembered(Logger):
    """Keeps what it was given; fails when it is told to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.steps: dict[str, set[Step]] = {}
        self.runs: list[TrialRun] = []
        self.closed = 0

    def open(self, study: LoggedStudy) -> Remembered:
        return self

    @property
    def written(self) -> Mapping[str, Collection[Step]]:
        return {name: set(steps) for name, steps in self.steps.items()}

    def write(self, run: TrialRun) -> None:
        if self.fails:
            raise OSError("disk full")
        self.runs.append(run)
        known = self.steps.setdefault(run.id, set())
        assert known.isdisjoint(run.metrics)
        known.update(run.metrics)

    def close(self) -> None:
        self.closed += 1


def test_a_feed_joins_the_changes_of_a_trial() -> None:
    running = record(0, state=TrialState.RUNNING, steps=2, until=STEPS)
    plan, logger = plan_of(running), Remembered()
    feed = LoggerFeed(logger, STUDY, plan, [running], interval=NEVER)
    plan.learn(plan.node_at(0, 3), 3, metrics={"loss": 1.0})
    feed.take(plan, [replace(running, steps=3, state=TrialState.PRUNED)])
    feed.close()
    feed.close()
    (run,) = logger.runs
    assert ([*run.metrics], run.state, logger.closed) == ([1, 2, 3], TrialState.PRUNED, 1)


def test_a_failing_logger_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    plan = plan_of(record(0))
    named = replace(STUDY, name="100%")
    LoggerFeed(Remembered(fails=True), named, plan, [record(0)], interval=NEVER).close()
    assert "study 100% is not logged by Remembered any more: disk full" in caplog.text


SPACE = dt.Space(lr=dt.Float(0.1, 1.0))


def own_loop(folder: Path, trials: int, *loggers: Logger) -> dt.Study:
    """Run a study without a trainer, and close it."""
    study = dt.create_study(
        None, name="own", storage=folder, metric="loss", load_if_exists=True, loggers=loggers
    )
    tuner = dt.algos.Random(SPACE, trials=trials, max_steps=2)
    while asked := study.ask(tuner):
        study.tell(asked, asked.params["lr"])  # type: ignore[arg-type]
    study.close()
    return study


def test_a_study_goes_on_in_the_same_runs(tmp_path: Path) -> None:
    logger = Remembered()
    own_loop(tmp_path, 2, logger)
    own_loop(tmp_path, 3, logger)
    assert [sorted(steps) for steps in logger.steps.values()] == [[2], [2], [2]]
    assert [run.state.value for run in logger.runs[-3:]] == ["COMPLETE"] * 3
    exported = Remembered()
    study = dt.create_study(None, name="own", storage=tmp_path, metric="loss", load_if_exists=True)
    exported.export(study)
    assert (exported.steps, exported.closed) == (logger.steps, 1)
    study.close()


def test_metrics_between_reports_come_too(tmp_path: Path) -> None:
    logger = Remembered()
    study = dt.create_study(
        None, name="own", storage=tmp_path, metric="loss", loggers=[logger], report_every=1
    )
    study.ask(dt.algos.Random(SPACE, trials=1, max_steps=4))
    study.plan.learn(study.plan.node_at(0, 2), 2, metrics={"loss": 1.0})
    follow = study.parts.feeds.following(None)
    assert follow is not None
    follow(None)
    study.close()
    assert [*logger.steps.values()] == [{2}]


def test_a_logger_that_does_not_open_ends_the_run_first(tmp_path: Path) -> None:
    class Closed(Remembered):
        def open(self, study: LoggedStudy) -> Remembered:
            raise StorageError("no such place")

    other = Remembered()
    with pytest.raises(StorageError, match="no such place"):
        own_loop(tmp_path, 1, other, Closed())
    assert (other.closed, other.runs) == (1, [])


@pytest.mark.parametrize(
    ("loggers", "message"),
    [
        ("tensorboard", "loggers must be a list of loggers such as .* got 't'"),
        (Remembered(), "loggers must be a list of loggers"),
        ([3], "got 3"),
    ],
)
def test_what_is_no_logger_is_refused(loggers: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        dt.create_study(None, name="a", storage=tmp_path, metric="loss", loggers=loggers)  # type: ignore[arg-type]


def test_a_logger_twice_is_refused(tmp_path: Path) -> None:
    same = Remembered()
    with pytest.raises(ConfigurationError, match=r"loggers must be different, got .* twice"):
        dt.create_study(None, name="a", storage=tmp_path, metric="loss", loggers=[same, same])


def test_export_of_no_study_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"study must be a dasktune\.Study, got 'net'"):
        Remembered().export("net")
