"""The engine: a tuner and a dispatcher, records, and replay."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from dasktune._engine.engine import Engine
from dasktune._engine.event_log import describe, replay
from dasktune._engine.outcome import Outcome, RunPrediction
from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_records import TunerBegun, document_of, read_record
from dasktune.algos import ASHA, EarlyTerm, Grid, Random, Tuner
from dasktune.algos.base import Inputs, Proposal
from dasktune.algos.curves import Curve, Persistence, Prediction, Question
from dasktune.algos.samplers import Source
from dasktune.errors import ConfigurationError
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Event,
    Failed,
    RunStage,
    Saved,
    Tick,
    TrainingEnded,
    WorkerJoined,
)
from dasktune.graph.keys import root_key
from dasktune.needs import NO_NEEDS, Needs
from dasktune.sequences import Constant
from dasktune.simulate import simulate
from dasktune.space import Configuration, Float, Space
from dasktune.storage.database.columns import to_text
from dasktune.types import (
    Decision,
    Direction,
    Extend,
    Finish,
    Now,
    Objective,
    Predict,
    Rank,
    Register,
    Report,
    Step,
    Stop,
    TrialState,
)

Metric = Callable[[float, Step], float]


class Halving(Tuner):
    """Trains four trials to 2 steps, and the better half of them to 4."""

    max_steps = 4

    def __init__(self, *, keep: int = 2) -> None:
        self.keep = keep
        self.values: dict[int, float] = {}
        self.failed = 0
        self.asked = False
        self.open = keep

    def ask(self, capacity: int) -> list[Decision]:
        if self.asked:
            return []
        self.asked = True
        lrs = [0.4, 0.1, 0.3, 0.2]
        known = [
            Register(trial=n, sequences={"lr": Constant(lr)}, max_steps=4, params={"lr": lr})
            for n, lr in enumerate(lrs)
        ]
        return [*known, *(Extend(trial=n, until=2, priority=float(n)) for n in range(4))]

    def tell(self, report: Report) -> list[Decision]:
        if report.step == 4:
            return self.close()
        self.values[report.trial] = report.metrics["loss"]
        return self.promote()

    def tell_failure(self, trial: int) -> list[Decision]:
        if trial in self.values:
            return self.close()
        self.failed += 1
        return self.promote()

    def promote(self) -> list[Decision]:
        if len(self.values) + self.failed < 4:
            return []
        ranked = sorted(self.values, key=lambda n: (math.isnan(self.values[n]), self.values[n]))
        stopped = [Stop(trial=n) for n in ranked[self.keep :]]
        promoted = [Extend(trial=n, until=4) for n in ranked[: self.keep]]
        return [*stopped, *promoted, *(Rank(trial=n, priority=3.0) for n in ranked[:1])]

    def close(self) -> list[Decision]:
        self.open -= 1
        return [] if self.open else [Finish()]

    def identity(self) -> dict[str, object]:
        return {"tuner": "Halving", "keep": self.keep}

    def snapshot(self) -> dict[str, object]:
        return {}

    def restore(self, snapshot: Mapping[str, object]) -> None:
        raise NotImplementedError


class Bench:
    """An engine on one worker that does at once what it is told, and keeps the log as JSON."""

    def __init__(
        self,
        metric: Metric,
        trials: dict[int, TrialRecord] | None = None,
        raises: Callable[[float], bool] = lambda lr: False,
        devices: int | None = None,
        **options: Any,
    ) -> None:
        needs = NO_NEEDS if devices is None else Needs.of({"cores": devices})
        if devices is not None:
            options["devices_of"] = lambda own: (own or needs).devices()
        self.dispatcher = Dispatcher(root_key("bench", 0), DispatchOptions(needs=needs))
        self.trials: dict[int, TrialRecord] = {} if trials is None else trials
        self.engine = Engine(
            self.dispatcher,
            objective=Objective.single("loss", "minimize"),
            trials=self.trials,
            **options,
        )
        self.metric, self.raises = metric, raises
        self.log: list[dict[str, object]] = []
        self.orders: deque[object] = deque()
        self.order_of_runs: list[float] = []
        self.now = 0.0

    def take(self, outcome: Outcome) -> None:
        self.log += [json.loads(to_text(document_of(record))) for record in outcome.records]
        self.orders.extend(outcome.orders)
        outcome.refuse()

    def tell(self, event: Event) -> None:
        self.take(self.engine.handle(event, self.now))

    def begin(self, tuner: Tuner, place: int = 0) -> None:
        self.take(self.engine.begin(tuner, place=place, capacity=1, now=0.0))

    def run(self, most: int = 1000) -> None:
        """Carry out as many stages as given, or all."""
        self.tell(WorkerJoined(worker="w0", resources={"cores": 2}))
        while self.orders and most:
            order = self.orders.popleft()
            if isinstance(order, RunStage):
                self.train(order)
                most -= 1

    def run_but_questions(self, most: int) -> None:
        """Carry out stages as `run` does, and leave the questions among the orders."""
        self.tell(WorkerJoined(worker="w0"))
        while most and (stages := [one for one in self.orders if isinstance(one, RunStage)]):
            self.orders.remove(stages[0])
            self.train(stages[0])
            most -= 1

    def train(self, order: RunStage) -> None:
        lr = order.node.sequences["lr"](0)
        assert isinstance(lr, float)
        self.order_of_runs.append(lr)
        if self.raises(lr):
            failed = Failed(attempt=order.attempt, step=order.start, message="boom", traceback="tb")
            self.tell(failed)
            return
        reports = tuple((s, self.told(lr, s)) for s in range(order.start + 1, order.stop + 1))
        self.tell(Saved(attempt=order.attempt, step=order.stop, reports=reports))
        self.tell(
            TrainingEnded(attempt=order.attempt, step=order.stop, status="trained", seconds=1.0)
        )

    def told(self, lr: float, step: Step) -> dict[str, float]:
        return {"loss": self.metric(lr, step)}


def loss(lr: float, step: Step) -> float:
    return lr / step


def summary(trials: Mapping[int, TrialRecord]) -> list[tuple[str, Step, float | None]]:
    return [(one.state.value, one.steps, one.value) for one in trials.values()]


def finished() -> Bench:
    bench = Bench(loss)
    bench.begin(Halving())
    bench.run()
    return bench


END = [
    ("PRUNED", 2, 0.2),
    ("COMPLETE", 4, 0.025),
    ("PRUNED", 2, 0.15),
    ("COMPLETE", 4, 0.05),
]


def test_a_tuner_runs_to_its_end() -> None:
    bench = finished()
    assert bench.engine.finished
    assert summary(bench.trials) == END
    assert bench.order_of_runs[:4] == [0.2, 0.3, 0.1, 0.4], "the highest priority first"
    assert bench.engine.reports_told == 6
    kinds = [record["kind"] for record in bench.log]
    assert kinds == ["tuner", "ask", *["tell"] * 6]
    assert bench.log[-1]["decisions"] == [{"do": "finish"}]


@pytest.mark.parametrize("stages", range(6))
def test_a_run_that_was_cut_off_goes_on_from_its_log(stages: int) -> None:
    before = Bench(loss)
    before.begin(Halving())
    before.run(most=stages)
    again = Bench(loss, before.trials)
    again.take(
        again.engine.resume(Halving(), place=0, records=map(read_record, before.log), now=0.0)
    )
    assert again.log == []
    again.run()
    assert summary(again.trials) == END
    told = [*before.log, *again.log]
    assert [record["kind"] for record in told] == ["tuner", "ask", *["tell"] * 6]
    assert before.order_of_runs[:stages] == [0.2, 0.3, 0.1, 0.4, 0.1, 0.2][:stages]


def test_other_devices_train_from_the_last_report_on() -> None:
    before = Bench(loss, devices=2)
    before.begin(Halving())
    before.run(most=5)
    again = Bench(loss, before.trials, devices=1)
    for trial in again.trials.values():  # as a study that is opened again knows them
        path = trial.number, trial.keyed_sequences, trial.max_steps, trial.seed
        again.dispatcher.register(*path)
        again.dispatcher.plan.node_at(trial.number, 2).checkpoints.add(2)  # it is stored
    again.take(
        again.engine.resume(Halving(), place=0, records=map(read_record, before.log), now=0.0)
    )
    again.run()
    assert summary(again.trials) == END
    assert again.trials[1].devices == ((0, 2),), "it had ended"
    assert again.trials[3].devices == ((0, 2), (2, 1))
    keys = [node.key_at(node.stop) for node in again.dispatcher.plan.nodes_of(3)]
    assert before.dispatcher.plan.node_at(3, 2).key_at(2) in keys
    assert before.dispatcher.plan.node_at(3, 4).key_at(4) not in keys


def test_priorities_are_as_they_were_after_a_resume() -> None:
    before = Bench(loss)
    before.begin(Halving())
    again = Bench(loss, before.trials)
    again.take(
        again.engine.resume(Halving(), place=0, records=map(read_record, before.log), now=0.0)
    )
    again.run(most=4)
    assert again.order_of_runs == [0.2, 0.3, 0.1, 0.4]
    last = Bench(loss, again.trials)
    log = [*before.log, *again.log]
    last.take(last.engine.resume(Halving(), place=0, records=map(read_record, log), now=0.0))
    (best,) = last.dispatcher.wanted[1]
    assert best.requests == {1: 3.0}, "the priority that it was given by rank"


def test_replay_of_a_finished_tuner_leaves_nothing_to_do() -> None:
    bench = finished()
    again = Bench(loss, bench.trials)
    again.take(
        again.engine.resume(Halving(), place=0, records=map(read_record, bench.log), now=0.0)
    )
    assert again.engine.finished
    assert summary(again.trials) == END
    assert again.dispatcher.wanted == {}
    again.run()
    assert again.order_of_runs == []


def test_a_tuner_that_decides_otherwise_than_its_log_is_refused() -> None:
    bench = finished()
    again = Bench(loss, bench.trials)
    with pytest.raises(ConfigurationError, match="must decide as recorded: after the report of"):
        again.engine.resume(Halving(keep=1), place=0, records=map(read_record, bench.log), now=0.0)


def test_tuners_in_a_row_share_the_plan_and_not_the_trials() -> None:
    bench = finished()
    ran = len(bench.order_of_runs)
    bench.begin(Grid(Space(lr=[0.1, 0.5]), max_steps=4), place=1)
    bench.run()
    assert bench.order_of_runs[ran:] == [0.5], "0.1 was trained by the first tuner"
    assert summary(bench.trials)[:4] == END
    assert summary(bench.trials)[4:] == [("COMPLETE", 4, 0.025), ("COMPLETE", 4, 0.125)]
    assert [(one.tuner, one.local) for one in bench.trials.values()][3:] == [(0, 3), (1, 0), (1, 1)]
    places = {record["place"] for record in bench.log if record["kind"] == "tell"}
    assert places == {0, 1}


def test_each_of_several_tuners_is_replayed_from_its_own_records() -> None:
    bench = finished()
    bench.begin(Grid(Space(lr=[0.1, 0.5]), max_steps=4), place=1)
    bench.run()
    again = Bench(loss, bench.trials)
    mine = [read_record(record) for record in bench.log if record["place"] == 1]
    grid = Grid(Space(lr=[0.1, 0.5]), max_steps=4)
    again.take(again.engine.resume(grid, place=1, records=mine, now=0.0))
    assert again.engine.finished
    assert summary(again.trials)[:4] == END


@pytest.mark.parametrize("stages", range(7))
def test_tuner_goes_on_after_another_one_was_run(stages: int) -> None:
    before = Bench(loss)
    before.begin(Halving())
    before.run(most=stages)
    between = Bench(loss, before.trials)
    between.begin(Grid(Space(lr=[0.5, 0.6]), max_steps=4), place=1)
    between.run()
    again = Bench(loss, between.trials)
    again.take(
        again.engine.resume(Halving(), place=0, records=map(read_record, before.log), now=0.0)
    )
    again.run()
    assert summary(again.trials)[:4] == END
    assert summary(again.trials)[4:] == [("COMPLETE", 4, 0.125), ("COMPLETE", 4, 0.15)]


def test_failed_trial_keeps_its_error_and_the_others_continue() -> None:
    bench = Bench(loss, raises=lambda lr: lr == 0.3)
    bench.begin(Halving())
    bench.run()
    assert [state for state, _, _ in summary(bench.trials)] == [
        "PRUNED",
        "COMPLETE",
        "FAIL",
        "COMPLETE",
    ]
    failed = bench.trials[2]
    assert (failed.message, failed.traceback, failed.steps, failed.until) == ("boom", "tb", 0, None)
    (record,) = [record for record in bench.log if record["kind"] == "fail"]
    assert (record["trial"], record["message"], record["traceback"]) == (2, "boom", "tb")
    again = Bench(loss, bench.trials)
    again.take(
        again.engine.resume(Halving(), place=0, records=map(read_record, bench.log), now=0.0)
    )
    assert again.engine.finished
    assert again.trials[2].state is TrialState.FAIL


def test_a_nan_is_a_value_like_others_and_survives_the_log() -> None:
    bench = Bench(lambda lr, step: math.nan if lr == 0.1 else lr / step)
    bench.begin(Halving())
    bench.run()
    states = [state for state, _, _ in summary(bench.trials)]
    assert states == ["PRUNED", "PRUNED", "COMPLETE", "COMPLETE"]
    assert math.isnan(bench.trials[1].value or 0.0)
    again = Bench(loss, bench.trials)
    again.take(
        again.engine.resume(Halving(), place=0, records=map(read_record, bench.log), now=0.0)
    )
    assert [state for state, _, _ in summary(again.trials)] == states
    assert math.isnan(again.trials[1].value or 0.0)


def test_unreported_metric_is_refused_with_the_known_metrics() -> None:
    bench = Bench(loss)
    bench.engine.objective = Objective.single("accuracy", "minimize")
    bench.begin(Halving())
    with pytest.raises(ConfigurationError, match="unknown metric 'accuracy'; known: loss"):
        bench.run()
    assert [trial.state.value for trial in bench.trials.values()].count("FAIL") == 2
    again = Bench(loss, bench.trials)
    again.take(
        again.engine.resume(Halving(), place=0, records=map(read_record, bench.log), now=0.0)
    )
    again.run()
    states = [trial.state.value for trial in again.trials.values()]
    assert states.count("FAIL") == 2
    assert "COMPLETE" in states, "the others go on in the next run"


def test_a_trial_that_lacks_the_metric_others_have_fails_alone() -> None:
    class Partial(Bench):
        def told(self, lr: float, step: Step) -> dict[str, float]:
            return {"other": 1.0} if lr == 0.3 else super().told(lr, step)

    bench = Partial(loss)
    bench.begin(Grid(Space(lr=[0.1, 0.3, 0.2]), max_steps=2))
    bench.run()
    assert [one.state.value for one in bench.trials.values()] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert bench.trials[1].message.startswith("metric 'loss' is absent at step 2: unknown metric")
    assert bench.engine.finished


@pytest.mark.parametrize("odd", [(0.1,), (0.1, 0.3)])
def test_a_first_trial_without_the_metric_fails_alone(odd: tuple[float, ...]) -> None:
    class Partial(Bench):
        def told(self, lr: float, step: Step) -> dict[str, float]:
            return {"other": 1.0} if lr in odd else super().told(lr, step)

    tuner = Grid(Space(lr=[0.1, 0.3, 0.2]), max_steps=2)
    bench = Partial(loss)
    bench.begin(tuner)
    if len(odd) == 2:
        with pytest.raises(ConfigurationError, match="no trial has reported it"):
            bench.run()
        trials, log = bench.trials, bench.log
        bench = Partial(loss, trials)
        bench.take(
            bench.engine.resume(
                Grid(Space(lr=[0.1, 0.3, 0.2]), max_steps=2),
                place=0,
                records=map(read_record, log),
                now=0.0,
            )
        )
    bench.run()
    failed = [trial.number for trial in bench.trials.values() if trial.state is TrialState.FAIL]
    assert failed == [*range(len(odd))]
    assert bench.trials[2].state is TrialState.COMPLETE


def test_metric_of_every_fifth_step_is_named_with_its_steps() -> None:
    class Rare(Bench):
        def told(self, lr: float, step: Step) -> dict[str, float]:
            return {"train": lr} if step % 5 else super().told(lr, step)

    bench = Rare(loss)
    bench.begin(Grid(Space(lr=[0.1, 0.3, 0.2]), max_steps=12))
    with pytest.raises(
        ConfigurationError, match=r"absent at step 12 \(present at 5, 10\): .*report_every=5"
    ):
        bench.run()


def test_resuming_writes_no_trial_again() -> None:
    bench = finished()
    again = Bench(loss, bench.trials)
    outcome = again.engine.resume(Halving(), place=0, records=map(read_record, bench.log), now=0.0)
    assert outcome.trials == ()
    assert outcome.records == ()


def test_a_muted_engine_tells_its_tuner_nothing() -> None:
    bench = Bench(loss)
    bench.begin(Halving())
    bench.engine.mute(0.0)
    bench.run()
    assert [one.steps for one in bench.trials.values()] == [0] * 4


def test_draining_keeps_what_is_asked_for() -> None:
    bench = Bench(loss)
    bench.begin(Halving())
    bench.tell(WorkerJoined(worker="w0"))
    bench.take(bench.engine.drain(0.0))
    assert not bench.engine.finished
    assert [one.state.value for one in bench.trials.values()] == ["RUNNING"] * 4


def test_decisions_are_described_as_json() -> None:
    decisions: list[Decision] = [
        Register(trial=1, sequences={"lr": Constant(0.1)}, max_steps=4),
        Extend(trial=1, until=2, priority=0.5),
        Stop(trial=1),
        Rank(trial=1, priority=2.0),
        Finish(),
    ]
    described = [describe(one) for one in decisions]
    assert json.loads(json.dumps(described)) == described
    assert [one["do"] for one in described] == ["register", "extend", "stop", "rank", "finish"]


def test_outcome_contains_each_change_once() -> None:
    bench = Bench(loss)
    outcome = bench.engine.begin(Halving(), place=0, capacity=1, now=0.0)
    assert [trial.number for trial in outcome.trials] == [0, 1, 2, 3]
    assert bench.engine.ask(1, 0.0) == Outcome((), (), ())


# ------------------------------------------------------------------------- reports on the way


class Watching(Tuner):
    """Trains two trials to step 8, looks at them at 2 and 5, and stops one as it is told."""

    max_steps = 8
    state = ("ends", "seen")

    def __init__(self, stop_at: int = 5) -> None:
        self.stop_at, self.ends = stop_at, 0
        self.seen: list[list[int]] = []

    def ask(self, capacity: int) -> list[Decision]:
        if self.seen:
            return []
        self.seen.append([0, 0])
        trials = ((0, Constant(0.1)), (1, Constant(0.2)))
        found: list[Decision] = []
        for trial, lr in trials:
            found.append(Register(trial=trial, sequences={"lr": lr}, max_steps=8))
            found.append(Extend(trial=trial, until=8, reports=(2, 5)))
        return found

    def tell(self, report: Report) -> list[Decision]:
        self.seen.append([report.trial, report.step])
        if report.step == 8:
            return self.end()
        if report.trial == 1 and report.step == self.stop_at:
            return [Stop(trial=1), *self.end()]
        return []

    def tell_failure(self, trial: int) -> list[Decision]:
        return self.end()

    def end(self) -> list[Decision]:
        self.ends += 1
        return [Finish()] if self.ends == 2 else []

    def identity(self) -> dict[str, object]:
        return {"tuner": "Watching", "stop_at": self.stop_at}


def test_a_trial_is_reported_on_the_way_and_stopped_there() -> None:
    bench, tuner = Bench(loss), Watching()
    bench.begin(tuner)
    bench.run()
    assert sorted(tuner.seen[1:]) == [[0, 2], [0, 5], [0, 8], [1, 2], [1, 5]]
    assert summary(bench.trials) == [("COMPLETE", 8, 0.0125), ("PRUNED", 5, 0.04)]


@pytest.mark.parametrize("stages", range(7))
def test_what_is_still_to_be_reported_is_known_after_a_resume(stages: int) -> None:
    before = Bench(loss)
    before.begin(Watching())
    before.run(most=stages)
    again, tuner = Bench(loss, before.trials), Watching()
    again.take(again.engine.resume(tuner, place=0, records=map(read_record, before.log), now=0.0))
    again.run()
    assert sorted(tuner.seen[1:]) == [[0, 2], [0, 5], [0, 8], [1, 2], [1, 5]]
    assert summary(again.trials) == [("COMPLETE", 8, 0.0125), ("PRUNED", 5, 0.04)]


def test_a_trial_that_is_on_its_way_is_running() -> None:
    bench = Bench(loss)
    bench.begin(Watching())
    bench.run(most=1)
    assert {one.state.value for one in bench.trials.values()} == {"RUNNING"}
    assert [one.steps for one in bench.trials.values()] in ([2, 0], [0, 2])


# -------------------------------------------------------------------------------- snapshots


@pytest.mark.parametrize("stages", range(7))
def test_resume_restores_the_last_snapshot_and_later_events(stages: int) -> None:
    before = Bench(loss, snapshot_every=2)
    before.begin(Watching())
    before.run(most=stages)
    at = max(n for n, one in enumerate(before.log) if one["kind"] in ("snapshot", "tuner"))
    if before.log[at]["kind"] == "snapshot":
        del before.log[1:at]  # what comes before it is not needed
    again, tuner = Bench(loss, before.trials, snapshot_every=2), Watching()
    again.take(again.engine.resume(tuner, place=0, records=map(read_record, before.log), now=0.0))
    again.run()
    assert summary(again.trials) == [("COMPLETE", 8, 0.0125), ("PRUNED", 5, 0.04)]
    assert sorted(tuner.seen[1:]) == [[0, 2], [0, 5], [0, 8], [1, 2], [1, 5]]


@pytest.mark.parametrize("tuner", [Watching, Halving])
@pytest.mark.parametrize("stages", range(7))
def test_resume_asks_for_what_was_asked_for(tuner: type[Tuner], stages: int) -> None:
    before = Bench(loss)
    before.begin(tuner())
    before.run(most=stages)
    again = Bench(loss, before.trials)
    again.take(again.engine.resume(tuner(), place=0, records=map(read_record, before.log), now=0.0))
    asked = [bench.engine._session.requests for bench in (before, again)]  # type: ignore[union-attr]
    assert asked[0] == asked[1]
    assert again.dispatcher.wanted.keys() == before.dispatcher.wanted.keys()
    stopped = {one.number for one in again.trials.values() if one.state is TrialState.PRUNED}
    assert not stopped & asked[1].keys()


@pytest.mark.parametrize("stages", range(7))
def test_resume_does_not_move_the_next_snapshot(stages: int) -> None:
    whole, before = Bench(loss, snapshot_every=2), Bench(loss, snapshot_every=2)
    for bench, most in ((whole, 1000), (before, stages)):
        bench.begin(Watching())
        bench.run(most=most)
    again = Bench(loss, before.trials, snapshot_every=2)
    again.take(
        again.engine.resume(Watching(), place=0, records=map(read_record, before.log), now=0.0)
    )
    again.run()
    kinds = [record["kind"] for record in [*before.log, *again.log]]
    assert kinds == [record["kind"] for record in whole.log]


def test_snapshot_distance_is_at_least_the_number_of_trials() -> None:
    bench = Bench(loss, snapshot_every=1)
    bench.begin(Grid(Space(lr=[0.1, 0.2, 0.3, 0.4, 0.5]), max_steps=1))
    bench.run()
    kinds = [record["kind"] for record in bench.log]
    assert kinds == ["tuner", "ask", *["tell"] * 3, "snapshot", *["tell"] * 2]


# ------------------------------------------------------------------------------- bad tuners


class Wrong(Watching):
    """Makes the decisions it was given at the first report."""

    def __init__(self, *decisions: Decision) -> None:
        super().__init__()
        self.decisions = decisions

    def tell(self, report: Report) -> list[Decision]:
        return list(self.decisions)


LR = {"lr": Constant(0.5)}


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Register(trial=3, sequences=LR, max_steps=1), "Wrong must register trial 2 next"),
        (Extend(trial=7, until=3), "Wrong must decide about trials that it registered, 0 to 1"),
        (Stop(trial=-1), "decide about trials that it registered"),
        (Rank(trial=2, priority=1.0), "decide about trials that it registered"),
        (Extend(trial=0, until=9), "beyond step 2 and up to 8"),
        (Extend(trial=0, until=2), "beyond step 2 and up to 8"),
        (Extend(trial=0, until=6, reports=(5, 4)), "its reports ascending"),
        (Extend(trial=0, until=6, reports=(6,)), "its reports ascending"),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused(decision: Decision, message: str) -> None:
    bench = Bench(loss)
    bench.begin(Wrong(decision))
    with pytest.raises(ConfigurationError, match=message):
        bench.run()


def test_a_trial_that_was_stopped_is_not_extended_again() -> None:
    bench = Bench(loss)
    bench.begin(Wrong(Stop(trial=0), Extend(trial=0, until=8)))
    with pytest.raises(ConfigurationError, match="not extend trial 0, which is PRUNED"):
        bench.run()


# ------------------------------------------------------------------------------------- NaN


def nan_for(lr: float, step: Step) -> float:
    return math.nan if lr == 0.2 and step > 3 else lr / step


def test_a_nan_may_end_its_trial_as_a_failure() -> None:
    bench = Bench(nan_for, fails_on_nan=True)
    bench.begin(Watching())
    bench.run()
    assert summary(bench.trials) == [("COMPLETE", 8, 0.0125), ("FAIL", 2, 0.1)]
    assert "loss must be finite (on_nan='fail'), got nan at step 5" in bench.trials[1].message
    assert bench.engine.finished


def test_a_nan_that_fails_its_trial_ends_its_training() -> None:
    bench = Bench(nan_for, fails_on_nan=True)
    bench.begin(Watching())
    while bench.trials[1].state is not TrialState.FAIL:
        assert 1 in bench.dispatcher.wanted
        bench.run(1)
    assert 1 not in bench.dispatcher.wanted


def test_a_nan_is_an_infinite_loss_to_the_tuner() -> None:
    heard: list[float] = []

    class Listening(Watching):
        def tell(self, report: Report) -> list[Decision]:
            heard.append(report.loss)
            return super().tell(report)

    bench = Bench(nan_for)
    bench.begin(Listening(stop_at=0))
    bench.run()
    assert sorted(heard)[-2:] == [math.inf, math.inf]


# ----------------------------------------------------------------- proposals and widening


class Counted(Source):
    """Proposes one third after another, and learns."""

    learns = True

    def __init__(self, calls: list[int]) -> None:
        self.calls, self.told = calls, 0

    def propose(self, trial: int) -> Proposal:
        self.calls.append(trial)
        return {"point": {"lr": (trial + 1) / 3}}

    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        return SAMPLED.at(proposal["point"])  # type: ignore[arg-type]

    def observe(self, trial: int, step: Step, losses: tuple[float, ...]) -> None:
        self.told += 1

    def identity(self) -> object:
        return "Counted"

    def snapshot(self) -> object:
        return self.told

    def restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, int)
        self.told = snapshot


SAMPLED = Space(lr=Float(0.0, 10.0))


def counted(trials: int, calls: list[int]) -> Random:
    return Random(SAMPLED, trials=trials, max_steps=2, sampler=Counted(calls))


def pump(bench: Bench) -> None:
    """Run until the tuner has ended, asking for more whenever the worker is idle."""
    bench.run()
    while not bench.engine.finished:
        bench.take(bench.engine.ask(1, 0.0))
        bench.run()


def test_proposals_are_in_the_log_and_not_made_again() -> None:
    calls: list[int] = []
    bench = Bench(loss)
    bench.begin(counted(4, calls))
    pump(bench)
    assert calls == [0, 1, 2, 3]
    proposed = [one for record in bench.log for one in record.get("proposals", ())]  # type: ignore[attr-defined]
    assert [one["point"]["lr"] for one in proposed] == [1 / 3, 2 / 3, 1.0, 4 / 3]
    again: list[int] = []
    found = replay(counted(4, again), map(read_record, bench.log), bench.engine.objective)
    assert found.identical, str(found)
    assert again == []


def test_a_finished_tuner_goes_on_with_more_trials() -> None:
    few = Bench(loss)
    few.begin(counted(2, []))
    pump(few)
    wide = counted(5, [])
    narrow = wide.widened_from(json.loads(json.dumps(counted(2, []).identity())))
    assert narrow is not None
    more = Bench(loss, few.trials)
    more.take(
        more.engine.resume(narrow, place=0, records=map(read_record, few.log), now=0.0, widen=5)
    )
    assert not more.engine.finished
    pump(more)
    assert [one.state.value for one in more.trials.values()] == ["COMPLETE"] * 5
    kinds = [record["kind"] for record in more.log]
    assert kinds[0] == "widen"
    log = [*few.log, *more.log]
    assert replay(counted(2, []), map(read_record, log), few.engine.objective).identical


def test_a_replay_says_where_it_differs_first() -> None:
    bench = finished()
    record = next(one for one in bench.log if one["kind"] == "tell" and one["decisions"])
    record["decisions"][0] = {"do": "stop", "trial": 1}  # type: ignore[index]
    found = replay(Halving(), map(read_record, bench.log), bench.engine.objective)
    assert not found.identical
    assert "after the report of trial" in str(found)
    assert "recorded {'do': 'stop', 'trial': 1}, now {'do': 'stop', 'trial': 2}" in str(found)
    whole = replay(Halving(), map(read_record, finished().log), bench.engine.objective)
    assert str(whole) == "identical: 8 calls of the tuner gave the recorded decisions"


def test_queued_points_come_first_and_are_in_the_log() -> None:
    bench = Bench(loss)
    tuner = counted(3, [])
    inputs = {"queued": [{"lr": 9.0}], "earlier": []}
    bench.take(bench.engine.begin(tuner, place=0, capacity=1, now=0.0, inputs=inputs))
    pump(bench)
    assert [one.point["lr"] for one in bench.trials.values()] == [9.0, 2 / 3, 1.0]
    assert replay(counted(3, []), map(read_record, bench.log), bench.engine.objective).identical


def test_begin_refuses_a_single_objective_tuner_for_two_metrics() -> None:
    both = Objective(metrics=("loss", "size"), directions=(Direction.MINIMIZE,) * 2)
    bench = Bench(loss)
    bench.engine.objective = both
    with pytest.raises(ConfigurationError, match="Halving must have one objective"):
        bench.begin(Halving())


# ------------------------------------------------------- what must not be written by halves


class Stumbling(Watching):
    """Fails in its own code at the second report, the first time."""

    stumbles = True

    def tell(self, report: Report) -> list[Decision]:
        if Stumbling.stumbles and report.step == 5:
            Stumbling.stumbles = False
            raise ConfigurationError("mine")
        return super().tell(report)


def test_a_call_that_broke_off_leaves_nothing_to_be_written() -> None:
    Stumbling.stumbles = True
    bench = Bench(loss)
    bench.begin(Stumbling())
    with pytest.raises(ConfigurationError, match="mine"):
        bench.run()
    rows = {number: replace(one) for number, one in bench.trials.items()}
    bench.engine.mute(0.0)
    said = bench.engine.drain(0.0)
    assert (said.records, said.trials, said.reports) == ((), (), ())
    told = {one["trial"]: one["step"] for one in bench.log if one["kind"] == "tell"}
    for number, row in rows.items():  # as the database has them: only what the log says
        row.steps = told.get(number, 0)  # type: ignore[call-overload]
    again = Bench(loss, rows)
    again.take(
        again.engine.resume(Stumbling(), place=0, records=map(read_record, bench.log), now=0.0)
    )
    again.run()
    assert summary(again.trials) == [("COMPLETE", 8, 0.0125), ("PRUNED", 5, 0.04)]


def test_begin_records_tuples_of_an_identity_as_lists() -> None:
    class Tupled(Halving):
        def identity(self) -> dict[str, object]:
            return {"tuner": "Tupled", "milestones": (1, 2)}

    outcome = Bench(loss).engine.begin(Tupled(), place=0, capacity=1, now=0.0)
    begun = outcome.records[0].cause
    assert isinstance(begun, TunerBegun)
    assert begun.identity == {"tuner": "Tupled", "milestones": [1, 2]}


def test_lowered_request_limits_training_and_reports() -> None:
    class Lowering(Watching):
        """Asks for step 8 with looks at 3 and 6, and at 3 for step 5 instead."""

        def ask(self, capacity: int) -> list[Decision]:
            found = super().ask(capacity)
            return [
                replace(one, reports=(3, 6)) if isinstance(one, Extend) else one for one in found
            ]

        def tell(self, report: Report) -> list[Decision]:
            self.seen.append([report.trial, report.step])
            if report.step == 3:
                return [Extend(trial=report.trial, until=5)]
            return self.end()

    bench, tuner = Bench(loss), Lowering()
    bench.begin(tuner)
    bench.run()
    assert sorted(tuner.seen[1:]) == [[0, 3], [0, 5], [1, 3], [1, 5]]
    assert [one.steps for one in bench.trials.values()] == [5, 5]
    # This worker does not listen: the stages to step 6 had been given to it. None went to 8.
    assert bench.dispatcher.open.steps_executed == 12


def test_a_replay_compares_what_was_registered() -> None:
    bench = Bench(loss)
    bench.begin(Random(SAMPLED, trials=2, max_steps=2, seed=1))
    bench.run()
    same = replay(
        Random(SAMPLED, trials=2, max_steps=2, seed=1),
        map(read_record, bench.log),
        bench.engine.objective,
    )
    other = replay(
        Random(SAMPLED, trials=2, max_steps=2, seed=2),
        map(read_record, bench.log),
        bench.engine.objective,
    )
    assert same.identical
    assert other.difference is not None
    assert "'register'" in other.difference


def test_begin_refuses_a_bad_queued_point_before_any_trial() -> None:
    bench = Bench(loss)
    inputs = {"queued": [{"lr": 1.0}, {"lr": 99.0}]}
    with pytest.raises(ConfigurationError, match="coordinate 'lr' must be in Float"):
        bench.engine.begin(counted(3, []), place=0, capacity=1, now=0.0, inputs=inputs)
    assert bench.trials == {}


class Repeating(Tuner):
    """Asks for one trial at a time; the second is the first once more."""

    max_steps = 2

    def __init__(self) -> None:
        self.open = False
        self.known = 0

    def ask(self, capacity: int) -> list[Decision]:
        if self.open or self.known == 3:
            return []
        self.open, trial = True, self.known
        lr = Constant([0.1, 0.1, 0.2][trial])
        self.known += 1
        return [
            Register(trial=trial, sequences={"lr": lr}, max_steps=2),
            Extend(trial=trial, until=2),
        ]

    def tell(self, report: Report) -> list[Decision]:
        self.open = False
        return [Finish()] if report.trial == 2 else []

    def tell_failure(self, trial: int) -> list[Decision]:
        return [Finish()]

    def identity(self) -> dict[str, object]:
        return {"tuner": "Repeating"}


def test_tuner_is_asked_again_when_all_its_requests_were_known() -> None:
    """Otherwise the run would stand still: without a stage under way no report can follow."""
    found = simulate(Repeating(), lambda values, step: values["lr"] / step)
    assert [trial.value for trial in found.trials] == [0.05, 0.05, 0.1]


# ------------------------------------------------------------------- predictions and the time


class Foreseeing(Watching):
    """Asks at step 2 what comes at 8, and stops trial 1 when it is told."""

    state = ("ends", "seen", "told")

    def __init__(self) -> None:
        super().__init__(stop_at=0)
        self.told: list[list[object]] = []

    def tell(self, report: Report) -> list[Decision]:
        found = super().tell(report)
        return [*found, Predict(trial=report.trial)] if report.step == 2 else found

    def question(self, trial: int) -> Question:
        steps = tuple(step for one, step in self.seen[1:] if one == trial)
        curve = Curve(steps=steps, scores=(0.5,) * len(steps), max_steps=8)
        return Question(predictor=Persistence(), curve=curve, steps=(8,))

    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        self.told.append([trial, prediction and prediction.after])
        if prediction is None or trial == 0:
            return []
        return [Stop(trial=1), *self.end()]

    def identity(self) -> dict[str, object]:
        return {"tuner": "Foreseeing"}


def asked(bench: Bench) -> list[tuple[int, Step]]:
    """Take the questions out of the orders; return their trials and what they rest on."""
    found = [one for one in bench.orders if isinstance(one, RunPrediction)]
    for one in found:
        bench.orders.remove(one)
    return [(one.trial, one.question.curve.last_step) for one in found]


def answer(bench: Bench, trial: int, after: Step, now: float = 0.0) -> None:
    curve = Curve(steps=(after,), scores=(0.5,), max_steps=8)
    found = Question(predictor=Persistence(), curve=curve, steps=(8,)).answer()
    bench.take(bench.engine.predicted(trial, found, now))


def foreseeing(stages: int) -> tuple[Bench, Foreseeing]:
    """Return a study whose questions nobody has answered after some stages."""
    bench, tuner = Bench(loss, snapshot_every=3), Foreseeing()
    bench.begin(tuner)
    bench.run_but_questions(stages)
    return bench, tuner


def go_on(before: Bench) -> tuple[Bench, Foreseeing]:
    again, tuner = Bench(loss, before.trials, snapshot_every=3), Foreseeing()
    again.take(again.engine.resume(tuner, place=0, records=map(read_record, before.log), now=0.0))
    return again, tuner


def test_prediction_is_requested_and_its_answer_reaches_a_tuner() -> None:
    bench, tuner = foreseeing(4)
    assert bench.engine.predicting
    assert asked(bench) == [(0, 2), (1, 2)]
    answer(bench, 1, 2)
    assert tuner.told == [[1, 2]]
    assert bench.log[-1]["decisions"] == [{"do": "stop", "trial": 1}]
    assert bench.trials[1].state is TrialState.PRUNED
    answer(bench, 0, 2)
    assert not bench.engine.predicting


def test_late_prediction_reaches_a_running_tuner_only_once() -> None:
    bench, tuner = foreseeing(5)
    assert [one.steps for one in bench.trials.values()] == [8, 5]
    answer(bench, 1, 2)
    answer(bench, 1, 2)
    assert tuner.told == [[1, 2]], "it is answered once"
    bench.run_but_questions(100)
    assert bench.engine.finished
    answer(bench, 0, 2)
    assert tuner.told == [[1, 2]], "the tuner has ended"


def test_predictions_of_stopped_and_failed_trials_are_dropped() -> None:
    class Stopping(Foreseeing):
        def tell(self, report: Report) -> list[Decision]:
            if report.trial == 1 and report.step == 5:
                return [Stop(trial=1), *self.end()]
            return super().tell(report)

    bench, tuner = Bench(loss), Stopping()
    bench.begin(tuner)
    bench.run_but_questions(1)
    bench.take(bench.engine.give_up(0, "boom", 0.0))
    answer(bench, 0, 2)
    bench.run_but_questions(100)
    answer(bench, 1, 2)
    assert asked(bench) == [(0, 2), (1, 2)]
    assert [one.state.value for one in bench.trials.values()] == ["FAIL", "PRUNED"]
    assert tuner.told == []


def test_impossible_prediction_reaches_the_tuner_as_none() -> None:
    bench, tuner = foreseeing(4)
    bench.take(bench.engine.predicted(1, None, 0.0))
    assert tuner.told == [[1, None]]
    assert bench.log[-1]["prediction"] is None
    assert bench.trials[1].state is TrialState.RUNNING


@pytest.mark.parametrize("stages", range(7))
def test_questions_that_are_open_are_asked_again_by_the_next_run(stages: int) -> None:
    before, _ = foreseeing(stages)
    open_before = asked(before)
    again, _ = go_on(before)
    assert [trial for trial, _ in asked(again)] == [
        trial for trial, _ in open_before if before.trials[trial].steps < 8
    ]
    assert replay(
        Foreseeing(), map(read_record, [*before.log, *again.log]), before.engine.objective
    ).identical
    for trial, _ in open_before:
        if before.trials[trial].steps < 8:
            answer(again, trial, before.trials[trial].steps)
    again.run_but_questions(100)
    for trial, _ in asked(again):
        answer(again, trial, 2)
    assert again.engine.finished
    log = [*before.log, *again.log]
    told = [one["trial"] for one in log if one["kind"] == "predicted"]
    assert sorted(told) == sorted(set(told)), "each was told at most once"


def test_resume_answers_predictions_of_complete_trials_with_none() -> None:
    before, _ = foreseeing(5)
    assert before.trials[0].state is TrialState.COMPLETE
    again, tuner = go_on(before)
    assert asked(again) == [(1, 5)]
    assert tuner.told == [[0, None]]
    assert again.log[0]["kind"] == "predicted"


def test_resume_does_not_repeat_an_answered_prediction() -> None:
    before, _ = foreseeing(4)
    answer(before, 0, 2)
    again, tuner = go_on(before)
    assert asked(again) == [(1, 5)], "it is asked of what is known now"
    assert tuner.told == [[0, 2]]
    assert again.log == []


class Timed(Watching):
    """Is told the time, and wants to be told of it each ten seconds; ends at thirty."""

    timed = True
    state = ("ends", "seen", "times", "told", "directions")

    def __init__(self) -> None:
        super().__init__(stop_at=0)
        self.times: list[float] = []
        self.told: list[list[object]] = []
        self.directions: object = None

    def prepare(self, inputs: Inputs) -> None:
        self.directions = inputs["directions"]

    def tell(self, report: Report) -> list[Decision]:
        assert report.now is not None
        self.told.append([report.trial, report.step, report.now.to_json()])
        return super().tell(report)

    @property
    def due_seconds(self) -> float | None:
        return 10.0 * (len(self.times) + 1)

    def tell_time(self, seconds: float) -> list[Decision]:
        self.times.append(seconds)
        return [Finish()] if seconds >= 30 else []


def test_timed_tuner_receives_time_curve_and_speed() -> None:
    bench, tuner = Bench(loss), Timed()
    bench.take(bench.engine.begin(tuner, place=0, capacity=1, now=100.0))
    bench.now = 104.0
    bench.run(most=2)
    assert tuner.directions == ["minimize"]
    assert [one[:2] for one in tuner.told] == [[0, 2], [0, 5]]
    _, _, now = tuner.told[1]
    # Nothing was measured at step 5's neighbours but what lies between the reports.
    assert (
        now
        == Now(
            seconds=4.0,
            step_seconds=now["step_seconds"],  # type: ignore[index]
            workers=1,
            between=((3, (0.1 / 3,)), (4, (0.025,))),
        ).to_json()
    )
    assert replay(Timed(), map(read_record, bench.log), bench.engine.objective).identical


def test_values_beyond_the_bounds_are_warned_of_once_a_run() -> None:
    warnings: list[str] = []

    class Warned(Bench):
        def take(self, outcome: Outcome) -> None:
            warnings.extend(outcome.warnings)
            super().take(outcome)

    bench = Warned(lambda lr, step: 10.0 * lr if step > 1 else 0.5)
    tuner = EarlyTerm(
        Space(lr=[0.1, 0.2, 0.3]), trials=3, max_steps=4, sampler="grid", bounds=(0, 1)
    )
    bench.begin(tuner)
    bench.run()
    assert [trial.steps for trial in bench.trials.values()] == [4, 4, 4], "none ends the study"
    assert len(warnings) == 1
    assert "bounds must hold all values of loss, 0 to 1, got 2 at step 2" in warnings[0]


def test_untimed_tuner_receives_neither_time_nor_curve() -> None:
    bench = Bench(loss)
    bench.begin(Watching())
    bench.run()
    assert all("now" not in record for record in bench.log)
    assert bench.log[0]["inputs"] == {}


def test_tuner_is_called_at_its_due_times() -> None:
    bench, tuner = Bench(loss), Timed()
    bench.take(bench.engine.begin(tuner, place=0, capacity=1, now=5.0))
    assert bench.engine.due == 15.0
    bench.now = 14.9
    bench.tell(Tick())
    assert tuner.times == []
    bench.now = 15.0
    bench.tell(Tick())
    bench.now = 41.0
    bench.tell(Tick())
    assert tuner.times == [10.0, 36.0]
    assert bench.engine.finished
    assert bench.engine.due is None
    times = [one for one in bench.log if one["kind"] == "time"]
    assert [one["seconds"] for one in times] == [10.0, 36.0]
    assert replay(Timed(), map(read_record, bench.log), bench.engine.objective).identical


@pytest.mark.parametrize("snapshot_every", [1, 1000])
def test_the_clock_goes_on_where_the_last_run_ended(snapshot_every: int) -> None:
    before = Bench(loss, snapshot_every=snapshot_every)
    before.take(before.engine.begin(Timed(), place=0, capacity=1, now=50.0))
    before.now = 62.0
    before.run(most=2)
    again, tuner = Bench(loss, before.trials), Timed()
    again.now = 7.0
    again.take(again.engine.resume(tuner, place=0, records=map(read_record, before.log), now=7.0))
    assert tuner.times == [12.0]
    assert again.engine.due == 15.0, "twelve seconds had passed when the last run ended"
    again.now = 16.0
    again.tell(Tick())
    assert tuner.times == [12.0, 21.0]
    again.run()
    assert max(one[2]["seconds"] for one in tuner.told) == 21.0  # type: ignore[index]


@pytest.mark.parametrize("is_broken_off", [False, True])
def test_what_a_run_took_after_its_last_call_counts(is_broken_off: bool) -> None:
    before = Bench(loss)
    before.take(before.engine.begin(Timed(), place=0, capacity=1, now=0.0))
    before.now = 4.0
    before.run(most=1)
    before.now = 9.0
    if is_broken_off:
        before.engine.mute(9.0)
    before.take(before.engine.drain(9.0))
    assert before.log[-1]["kind"] == "clock"
    assert replay(Timed(), map(read_record, before.log), before.engine.objective).identical
    again = Bench(loss, before.trials)
    again.take(again.engine.resume(Timed(), place=0, records=map(read_record, before.log), now=0.0))
    assert again.engine.due == pytest.approx(1.0)


def test_what_a_step_takes_is_not_known_before_it_was_measured() -> None:
    bench, tuner = Bench(loss), Timed()
    bench.take(bench.engine.begin(tuner, place=0, capacity=1, now=0.0))
    bench.engine.own_workers = 3
    bench.run(most=1)
    assert tuner.told[0][2] | {"between": []} == {  # type: ignore[operator]
        "seconds": 0.0,
        "step_seconds": 0.0,
        "workers": 3,
        "between": [],
    }


# --------------------------------------------------------------------- a horizon that grows


def endless(trials: int) -> ASHA:
    return ASHA(Space(lr=Float(0.1, 1.0)), trials=trials, min_steps=1, eta=2, brackets=[0])


def widened(wide: ASHA, few: Bench) -> tuple[ASHA, Bench]:
    """Return the tuner of a log and a bench that goes on with the trials of a wider one."""
    identity = dict(few.log[0]["identity"])  # type: ignore[call-overload]
    tuner = wide.widened_from(identity)
    assert tuner is not None
    more = Bench(loss, few.trials)
    more.take(
        more.engine.resume(
            tuner, place=0, records=map(read_record, few.log), now=0.0, widen=wide.trials
        )
    )
    return tuner, more


def test_trials_go_on_when_the_horizon_of_their_tuner_grows() -> None:
    few = Bench(loss)
    few.begin(endless(2))
    few.run()
    assert [trial.max_steps for trial in few.trials.values()] == [2, 2]
    assert sorted(state for state, _, _ in summary(few.trials)) == ["COMPLETE", "PRUNED"]
    tuner, more = widened(endless(8), few)
    more.run()
    assert tuner.max_steps == 8
    assert {trial.max_steps for trial in more.trials.values()} == {8}
    best = min(more.trials.values(), key=lambda trial: trial.sequences["lr"](0))
    assert (best.state, best.steps) == (TrialState.COMPLETE, 8)

    log = [*few.log, *more.log]
    ended = summary(more.trials)
    records = {
        n: TrialRecord.from_json(
            json.loads(json.dumps(trial.to_json())),
            number=n,
            state=trial.state.value,
            steps=trial.steps,
        )
        for n, trial in more.trials.items()
    }
    assert [trial.max_steps for trial in records.values()] == [8] * 8
    for trials in (
        records,
        {n: replace(trial, max_steps=2) if n < 2 else trial for n, trial in records.items()},
    ):
        again = Bench(loss, dict(trials))
        same = endless(8).widened_from(log[0]["identity"])  # type: ignore[arg-type]
        assert same is not None
        again.take(again.engine.resume(same, place=0, records=map(read_record, log), now=0.0))
        assert again.engine.finished
        assert summary(again.trials) == ended
        assert {trial.max_steps for trial in again.trials.values()} == {8}


class Needy(Halving):
    """Gives each trial needs of its own."""

    def ask(self, capacity: int) -> list[Decision]:
        return [
            replace(decision, needs=Needs.of({"GPU": 1 + decision.trial % 2}))
            if isinstance(decision, Register)
            else decision
            for decision in super().ask(capacity)
        ]


def engine_with(**options: Any) -> Engine:
    dispatcher = Dispatcher(root_key("needy", 0), DispatchOptions())
    objective = Objective.single("loss", "minimize")
    return Engine(dispatcher, objective=objective, trials={}, **options)


def test_needs_of_a_tuner_reach_the_dispatcher_and_the_trial() -> None:
    engine = engine_with()
    engine.begin(Needy(), place=0, capacity=2, now=0.0)
    joined = WorkerJoined(worker="w", resources={"GPU": 1.0})
    (order,) = (each for each in engine.handle(joined, 0.0).orders if isinstance(each, RunStage))
    assert engine.trials[0].needs == Needs.of({"GPU": 1})
    assert order.needs == {"GPU": 1.0}
    assert order.node.sequences["lr"](0) in (0.4, 0.3)


def test_trial_whose_needs_are_unknown_fails_and_others_go_on() -> None:
    def needs_of(values: Mapping[str, object]) -> Needs:
        if values["lr"] == 0.4:
            raise ConfigurationError("needs must be known for 0.4")
        return NO_NEEDS

    engine = engine_with(needs_of=needs_of)
    outcome = engine.begin(Halving(), place=0, capacity=2, now=0.0)
    assert engine.trials[0].state is TrialState.FAIL
    assert engine.trials[0].message == "needs must be known for 0.4"
    assert [record.cause.kind for record in outcome.records] == ["tuner", "ask", "fail"]
    assert set(engine.view.wanted) == {1, 2, 3}
