"""The engine: a tuner and a dispatcher, records, and replay."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping

import pytest

from dasktune.algos import Grid, Tuner
from dasktune.engine import Engine, Outcome, describe
from dasktune.errors import ConfigurationError, InternalError
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Ended, Event, Failed, RunStage, Saved, WorkerJoined
from dasktune.graph.keys import root_key
from dasktune.sequences import Constant
from dasktune.space import Space
from dasktune.trials import TrialRecord
from dasktune.types import (
    Decision,
    Extend,
    Finish,
    Objective,
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
    ) -> None:
        self.dispatcher = Dispatcher(root_key("bench", 0), DispatchOptions())
        self.trials: dict[int, TrialRecord] = {} if trials is None else trials
        self.engine = Engine(
            self.dispatcher, objective=Objective.single("loss", "minimize"), trials=self.trials
        )
        self.metric, self.raises = metric, raises
        self.log: list[dict[str, object]] = []
        self.orders: deque[object] = deque()
        self.order_of_runs: list[float] = []

    def take(self, outcome: Outcome) -> None:
        self.log += [json.loads(json.dumps(record)) for record in outcome.records]
        self.orders.extend(outcome.orders)

    def tell(self, event: Event) -> None:
        self.take(self.engine.handle(event, 0.0))

    def begin(self, tuner: Tuner, place: int = 0) -> None:
        self.take(self.engine.begin(tuner, place=place, capacity=1, now=0.0))

    def run(self, most: int = 1000) -> None:
        """Carry out as many stages as given, or all."""
        self.tell(WorkerJoined(worker="w0"))
        while self.orders and most:
            order = self.orders.popleft()
            if isinstance(order, RunStage):
                self.train(order)
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
        self.tell(Ended(attempt=order.attempt, step=order.stop, status="trained", seconds=1.0))

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
    again.take(again.engine.resume(Halving(), place=0, records=before.log, now=0.0))
    assert again.log == []
    again.run()
    assert summary(again.trials) == END
    told = [*before.log, *again.log]
    assert [record["kind"] for record in told] == ["tuner", "ask", *["tell"] * 6]
    assert before.order_of_runs[:stages] == [0.2, 0.3, 0.1, 0.4, 0.1, 0.2][:stages]


def test_priorities_are_as_they_were_after_a_resume() -> None:
    before = Bench(loss)
    before.begin(Halving())
    again = Bench(loss, before.trials)
    again.take(again.engine.resume(Halving(), place=0, records=before.log, now=0.0))
    again.run(most=4)
    assert again.order_of_runs == [0.2, 0.3, 0.1, 0.4]
    last = Bench(loss, again.trials)
    log = [*before.log, *again.log]
    last.take(last.engine.resume(Halving(), place=0, records=log, now=0.0))
    (best,) = last.dispatcher.wanted[1]
    assert best.requests == {1: 3.0}, "the priority that it was given by rank"


def test_replay_of_a_finished_tuner_leaves_nothing_to_do() -> None:
    bench = finished()
    again = Bench(loss, bench.trials)
    again.take(again.engine.resume(Halving(), place=0, records=bench.log, now=0.0))
    assert again.engine.finished
    assert summary(again.trials) == END
    assert again.dispatcher.wanted == {}
    again.run()
    assert again.order_of_runs == []


def test_a_tuner_that_decides_otherwise_than_its_log_is_refused() -> None:
    bench = finished()
    again = Bench(loss, bench.trials)
    with pytest.raises(ConfigurationError, match="must decide as recorded: after the report of"):
        again.engine.resume(Halving(keep=1), place=0, records=bench.log, now=0.0)


def test_a_record_of_unknown_kind_is_refused() -> None:
    bench = Bench(loss)
    with pytest.raises(InternalError, match="unknown kind 'guess'"):
        bench.engine.resume(Halving(), place=0, records=[{"kind": "guess"}], now=0.0)


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
    mine = [record for record in bench.log if record["place"] == 1]
    grid = Grid(Space(lr=[0.1, 0.5]), max_steps=4)
    again.take(again.engine.resume(grid, place=1, records=mine, now=0.0))
    assert again.engine.finished
    assert summary(again.trials)[:4] == END


def test_a_trial_that_fails_is_told_of_and_the_others_go_on() -> None:
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
    again.take(again.engine.resume(Halving(), place=0, records=bench.log, now=0.0))
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
    again.take(again.engine.resume(Halving(), place=0, records=bench.log, now=0.0))
    assert [state for state, _, _ in summary(again.trials)] == states
    assert math.isnan(again.trials[1].value or 0.0)


def test_a_metric_that_is_not_reported_is_refused_with_those_that_are() -> None:
    bench = Bench(loss)
    bench.engine.objective = Objective.single("accuracy", "minimize")
    bench.begin(Halving())
    with pytest.raises(ConfigurationError, match="unknown metric 'accuracy'; known: loss"):
        bench.run()


def test_a_trial_that_lacks_the_metric_others_have_fails_alone() -> None:
    class Partial(Bench):
        def told(self, lr: float, step: Step) -> dict[str, float]:
            return {"other": 1.0} if lr == 0.3 else super().told(lr, step)

    bench = Partial(loss)
    bench.begin(Grid(Space(lr=[0.1, 0.3, 0.2]), max_steps=2))
    bench.run()
    assert [one.state.value for one in bench.trials.values()] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert bench.trials[1].message == "unknown metric 'loss'; known: other"
    assert bench.engine.finished


def test_resuming_writes_no_trial_again() -> None:
    bench = finished()
    again = Bench(loss, bench.trials)
    outcome = again.engine.resume(Halving(), place=0, records=bench.log, now=0.0)
    assert outcome.trials == ()
    assert outcome.records == ()


def test_a_muted_engine_tells_its_tuner_nothing() -> None:
    bench = Bench(loss)
    bench.begin(Halving())
    bench.engine.mute()
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


def test_what_changed_is_said_once_with_each_outcome() -> None:
    bench = Bench(loss)
    outcome = bench.engine.begin(Halving(), place=0, capacity=1, now=0.0)
    assert [trial.number for trial in outcome.trials] == [0, 1, 2, 3]
    assert bench.engine.ask(1, 0.0) == Outcome((), (), ())
