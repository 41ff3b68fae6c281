"""Trials that get more devices when few of them live: what the engine chooses, logs and resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from dasktune._engine import scaling
from dasktune._engine.engine import Engine
from dasktune._engine.event_log import in_words, replay
from dasktune._engine.outcome import Outcome
from dasktune._engine.scaling import DeviceChoices, Scale
from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_records import Document, document_of, read_record
from dasktune.algos import Tuner
from dasktune.errors import InternalError
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.devices import Periods, devices_at
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Progress,
    RunStage,
    Saved,
    StopStage,
    Tick,
    TrainingEnded,
    WorkerJoined,
    WorkerLost,
    WorkersJoined,
)
from dasktune.graph.keys import root_key
from dasktune.graph.policies.broken_workers import BrokenWorkers
from dasktune.needs import Needs
from dasktune.sequences import Constant, Piecewise
from dasktune.storage.database.columns import to_text
from dasktune.types import Decision, Extend, Finish, Objective, Register, Report, Sequences, Step

STEPS = (2, 4, 8)
Seconds = Callable[[int], float]
"""The seconds of a step by the number of devices."""


LOSS = Objective.single("loss", "minimize")


class Ladder(Tuner):
    """Trains trials rung by rung; `kept` of them go on from each rung, the first ones."""

    max_steps = STEPS[-1]

    def __init__(self, kept: Sequence[int], trials: Sequence[Sequences] = ()) -> None:
        self.kept = tuple(kept)
        self.sequences = [*trials] or [{"lr": Constant(0.1 * (n + 1))} for n in range(kept[0])]
        self.rung = -1
        self.waiting: set[int] = set()

    def ask(self, capacity: int) -> list[Decision]:
        if self.rung >= 0:
            return []
        known = [
            Register(trial=n, sequences=each, max_steps=self.max_steps, params={})
            for n, each in enumerate(self.sequences)
        ]
        return [*known, *self.climb()]

    def climb(self) -> list[Decision]:
        self.rung += 1
        if self.rung == len(STEPS):
            return [Finish()]
        self.waiting = set(range(self.kept[self.rung]))
        return [Extend(trial=n, until=STEPS[self.rung]) for n in sorted(self.waiting)]

    def tell(self, report: Report) -> list[Decision]:
        self.waiting.discard(report.trial)
        return [] if self.waiting else self.climb()

    def tell_failure(self, trial: int) -> list[Decision]:
        return []

    def identity(self) -> dict[str, object]:
        return {"tuner": "Ladder", "kept": list(self.kept)}


class Late(Ladder):
    """Trains the first trial rung by rung, then each of the others at once."""

    def climb(self) -> list[Decision]:
        self.rung += 1
        trial = max(0, self.rung + 1 - len(STEPS))
        if trial == self.kept[0]:
            return [Finish()]
        self.waiting = {trial}
        return [Extend(trial=trial, until=STEPS[min(self.rung, len(STEPS) - 1)])]


class Bench:
    """An engine on workers that train one stage at once, each as many devices as it asks for."""

    def __init__(
        self,
        workers: int,
        scale: Scale | None,
        seconds: Seconds = lambda devices: 1.0 / devices,
        trials: dict[int, TrialRecord] | None = None,
        **options: Any,
    ) -> None:
        self.may_place = True
        self.dispatcher = Dispatcher(
            root_key("bench", 0), DispatchOptions(), may_place=lambda: self.may_place
        )
        self.trials: dict[int, TrialRecord] = {} if trials is None else trials
        self.engine = Engine(
            self.dispatcher,
            objective=LOSS,
            trials=self.trials,
            scale=scale,
            **options,
        )
        self.workers, self.seconds = workers, seconds
        self.log: list[Document] = []
        self.orders: list[RunStage] = []
        self.stops: list[str] = []
        self.trained: list[tuple[float, int, int, int]] = []
        """The learning rate, devices, first and last step of each stage."""

    def take(self, outcome: Outcome) -> None:
        self.log += [json.loads(to_text(document_of(record))) for record in outcome.records]
        self.orders += [order for order in outcome.orders if isinstance(order, RunStage)]
        self.stops += [order.attempt for order in outcome.orders if isinstance(order, StopStage)]

    def tell(self, event: Any) -> None:
        self.take(self.engine.handle(event, 0.0))

    def begin(self, tuner: Tuner) -> Bench:
        self.take(self.engine.begin(tuner, place=0, capacity=self.workers, now=0.0))
        return self

    def resume(self, tuner: Tuner, before: Bench) -> Bench:
        for trial in self.trials.values():  # as a study that is opened again knows them
            path = trial.number, trial.keyed_sequences, trial.max_steps, trial.seed
            self.dispatcher.register(*path)
            leaf = self.dispatcher.plan.paths[trial.number].leaf
            for node in before.dispatcher.plan.nodes_of(trial.number):
                for step in node.checkpoints:
                    self.dispatcher.plan.learn(leaf, step, is_stored=True)
                for step, metrics in node.metrics.items():
                    self.dispatcher.plan.learn(leaf, step, metrics=metrics)
        self.engine.recall(before.engine.view.kept)
        self.take(self.engine.resume(tuner, place=0, records=map(read_record, before.log), now=0.0))
        return self

    def ask(self) -> Bench:
        """Ask for more, as a runner does while workers are idle."""
        self.take(self.engine.ask(self.engine.view.capacity(0.0), 0.0))
        return self

    def join(self) -> Bench:
        joined = tuple(WorkerJoined(worker=f"w{n}") for n in range(self.workers))
        self.tell(WorkersJoined(workers=joined))
        return self

    def lose(self, *workers: str) -> None:
        """Lose workers; what they ran waits until all of them are gone."""
        self.orders.clear()
        self.may_place = False
        for worker in workers:
            self.tell(WorkerLost(worker=worker))
        self.may_place = True
        self.tell(Tick())

    def run(self, most: int = 1000) -> Bench:
        while self.orders and most:
            self.train(self.orders.pop(0))
            most -= 1
        return self

    def train(self, order: RunStage) -> None:
        sequences = order.node.sequences
        devices = devices_at(sequences, order.start)
        numbers = {devices_at(sequences, step) for step in range(order.start, order.stop)}
        assert numbers == {devices}, "they change at the borders of stages only"
        self.trained.append((sequences["lr"](0), devices, order.start, order.stop))  # type: ignore[arg-type]
        steps = order.stop - order.start
        ended = TrainingEnded(
            attempt=order.attempt,
            step=order.stop,
            status="trained",
            seconds=steps * self.seconds(devices),
        )
        self.tell(ended)
        start = order.start
        for step in sorted({*order.saves, order.stop}):
            reports = tuple((at, {"loss": 1.0 / at}) for at in range(start + 1, step + 1))
            self.tell(Saved(attempt=order.attempt, step=step, reports=reports))
            start = step

    @property
    def rows(self) -> list[Document]:
        return [record for record in self.log if record["kind"] == "devices"]

    @property
    def devices(self) -> list[Sequence[tuple[int, int]]]:
        return [trial.devices for trial in self.trials.values()]


def ladder(*kept: int, workers: int = 8, most: int = 8, **options: Any) -> Bench:
    return Bench(workers, Scale(max=most), **options).begin(Ladder(kept)).join().run()


def test_fewer_living_trials_get_more_devices() -> None:
    bench = ladder(8, 4, 1)
    assert bench.devices[0] == ((0, 1), (2, 2), (4, 8))
    assert bench.devices[1:4] == [((0, 1), (2, 2))] * 3
    assert bench.devices[4:] == [((0, 1),)] * 4
    assert [trial.steps for trial in bench.trials.values()] == [8, 4, 4, 4, 2, 2, 2, 2]
    assert bench.dispatcher.open.steps_repeated == 0


def test_few_trials_begin_on_one_device_each() -> None:
    assert ladder(1, 1, 1).devices == [((0, 1), (2, 8))]


def test_trials_without_scale_keep_one_device() -> None:
    bench = Bench(8, None).begin(Ladder((2, 1, 1))).join().run()
    assert bench.devices == [((0, 1),)] * 2
    assert bench.rows == []


def test_devices_that_do_not_pay_are_taken_back() -> None:
    def seconds(devices: int) -> float:
        return {1: 1.0, 8: 0.8}[devices]

    assert ladder(1, 1, 1, seconds=seconds).devices == [((0, 1), (2, 8), (4, 1))]


def test_fewer_devices_follow_where_many_pay_in_part() -> None:
    def seconds(devices: int) -> float:
        return {1: 1.0, 8: 0.3}[devices]  # by Amdahl's law 2 keep 0.83, 4 keep 0.63

    bench = Bench(8, Scale(max=8), seconds).begin(Ladder((1, 1, 1))).join().run(most=2)
    assert bench.devices == [((0, 1), (2, 8), (4, 2))]


def test_devices_are_halved_when_more_trials_live_again() -> None:
    bench = ladder(8, 1, 4)
    assert bench.devices[0] == ((0, 1), (2, 8), (4, 2))
    assert bench.devices[1:4] == [((0, 1), (2, 2))] * 3


def test_trials_keep_the_devices_of_the_steps_that_they_share() -> None:
    first = Piecewise([0.1, 0.2], boundaries=[6])
    second = Piecewise([0.1, 0.3], boundaries=[7])
    other = Constant(0.5)
    trials = [{"lr": first}, {"lr": second}, {"lr": other}]
    bench = Bench(4, Scale(max=4)).begin(Ladder((3, 2, 2), trials)).join().run()
    assert bench.devices[:2] == [((0, 1), (2, 2))] * 2
    assert sum(stop - start for _, _, start, stop in bench.trained) == 6 + 2 + 2 + 2
    assert bench.dispatcher.open.steps_repeated == 0


def late(*steps: Step) -> Late:
    """Return a tuner of trials, each of which leaves the first one at a step."""
    trunk = [(6, 0.2), *((step, 0.3 + n) for n, step in enumerate(steps))]
    alike = [{"lr": Piecewise([0.1, lr], boundaries=[step])} for step, lr in trunk]
    return Late((len(alike),), alike)


def test_a_trial_that_joins_a_trunk_takes_its_devices() -> None:
    bench = Bench(2, Scale(max=2)).begin(late(6)).join().run()
    assert bench.devices == [((0, 1), (2, 2))] * 2
    assert bench.trained == [(0.1, 1, 0, 2), (0.1, 2, 2, 4), (0.1, 2, 4, 8), (0.1, 2, 6, 8)]


@pytest.mark.parametrize("step", [3, 5, 6, 7])
def test_a_trial_known_beforehand_parts_from_a_saved_state(step: Step) -> None:
    other = Piecewise([0.1, 0.3], boundaries=[step])
    tuner = Late((2,), [{"lr": Constant(0.1)}, {"lr": other}])
    bench = Bench(2, Scale(max=2)).begin(tuner).join().run()
    assert bench.trained[:3] == [(0.1, 1, 0, 2), (0.1, 2, 2, 4), (0.1, 2, 4, 8)]
    assert bench.trained[3:] == [(0.1, 2, step, 8)]
    assert bench.dispatcher.open.steps_repeated == 0


def test_a_trunk_of_changing_devices_is_not_trained_twice() -> None:
    seconds = {1: 1.0, 2: 0.6, 8: 0.3}.__getitem__
    bench = Bench(8, Scale(max=8), seconds).begin(late(7)).join().run()
    assert bench.devices[0] == ((0, 1), (2, 8), (4, 2))
    assert bench.devices[1] == bench.devices[0]
    assert [each[2:] for each in bench.trained] == [(0, 2), (2, 4), (4, 8), (6, 8)]


@pytest.mark.parametrize("stages", range(14))
def test_a_run_cut_off_anywhere_chooses_nothing_again(stages: int) -> None:
    whole = ladder(8, 4, 1)
    before = Bench(8, Scale(max=8)).begin(Ladder((8, 4, 1))).join().run(most=stages)
    again = Bench(8, Scale(max=8), trials=before.trials).resume(Ladder((8, 4, 1)), before)
    again.join().run()
    assert [*before.rows, *again.rows] == whole.rows
    assert again.devices == whole.devices
    assert sorted([*before.trained, *again.trained]) == sorted(whole.trained)


def test_replay_of_choices_is_identical() -> None:
    bench = ladder(8, 4, 1)
    assert [row["trial"] for row in bench.rows] == [0, 1, 2, 3, 0]
    assert bench.rows[-1]["devices"] == [[0, 1], [2, 2], [4, 8]]
    answer = replay(Ladder((8, 4, 1)), map(read_record, bench.log), LOSS)
    assert answer.identical
    assert answer.calls == len([each for each in bench.log if each["kind"] != "devices"])
    words = in_words(read_record(bench.rows[-1]))
    assert words == "the choice of devices for trial 0: 1, 2 from step 2, 8 from step 4"


def test_a_study_resumed_without_scale_keeps_the_choice() -> None:
    before = Bench(4, Scale(max=4)).begin(Ladder((4, 1, 1))).join().run(most=4)
    assert before.devices[0] == ((0, 1), (2, 4))
    again = Bench(4, None, trials=before.trials).resume(Ladder((4, 1, 1)), before).join().run()
    assert again.devices[0] == ((0, 1), (2, 4))
    assert [each[1] for each in again.trained] == [4, 4]


def gang_of(workers: int) -> tuple[Bench, RunStage, str]:
    """Return a run whose last trial trains on all workers; its stage, and a worker beside it."""
    scale = Scale(max=workers)
    bench = Bench(workers, scale).begin(Ladder((workers, 1, 1))).join().run(most=workers)
    (order,) = bench.orders
    assert devices_at(order.node.sequences, order.start) == workers
    return bench, order, next(f"w{n}" for n in range(workers) if f"w{n}" != order.worker)


def test_lost_workers_leave_a_waiting_trial_fewer_devices() -> None:
    bench, order, other = gang_of(4)
    bench.lose(other, order.worker)
    assert bench.devices[0] == ((0, 1), (2, 2))
    assert bench.rows[-1]["devices"] == [[0, 1], [2, 2]]
    assert bench.run().trials[0].steps == 8
    assert [each[1] for each in bench.trained[4:]] == [2, 2]


def test_a_lost_stage_goes_on_from_its_last_state_with_fewer() -> None:
    bench, order, other = gang_of(4)
    bench.tell(Saved(attempt=order.attempt, step=3, reports=((3, {"loss": 0.5}),)))
    bench.lose(other, order.worker)
    assert bench.devices[0] == ((0, 1), (2, 4), (3, 2))
    assert bench.run().trials[0].steps == 8
    assert bench.trained[4:] == [(0.1, 2, 3, 4), (0.1, 2, 4, 8)]
    assert bench.dispatcher.open.steps_repeated == 0


def test_the_last_worker_trains_alone_what_two_should() -> None:
    bench, order, _ = gang_of(2)
    bench.lose(order.worker)
    assert bench.devices[0] == ((0, 1),)
    assert bench.run().trained[2:] == [(0.1, 1, 2, 4), (0.1, 1, 4, 8)]


def test_a_gang_does_not_wait_for_workers_put_aside() -> None:
    bench, order, other = gang_of(4)
    bench.orders.clear()
    broken = bench.dispatcher.placing.policy(BrokenWorkers)
    assert broken is not None
    broken.put_aside(other, 0.0)
    bench.tell(TrainingEnded(attempt=order.attempt, step=2, status="lost", seconds=0.0))
    assert bench.devices[0] == ((0, 1), (2, 2))
    assert bench.run().trials[0].steps == 8


def moved(efficient: float, steps: int) -> tuple[Bench, RunStage]:
    """Return a run whose last stage, on 4 devices, has told of some steps."""
    bench, order, _ = gang_of(4)
    progress = Progress(attempt=order.attempt, step=2 + steps, seconds=steps * efficient)
    bench.tell(progress)
    return bench, order


def end_early(bench: Bench, order: RunStage, step: int) -> None:
    """End a stage that was told to stop."""
    bench.orders.clear()
    reports = tuple((at, {"loss": 1.0 / at}) for at in range(order.start + 1, step + 1))
    bench.tell(TrainingEnded(attempt=order.attempt, step=step, status="stopped", seconds=0.0))
    bench.tell(Saved(attempt=order.attempt, step=step, reports=reports))


def test_devices_that_do_not_pay_are_taken_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "PROVEN_STEPS", 1)
    bench, order = moved(11.0, 1)  # one device took 1 s
    assert bench.stops == [order.attempt]
    assert bench.devices[0] == ((0, 1), (2, 4)), "its stage has not ended"
    end_early(bench, order, 3)
    assert bench.devices[0] == ((0, 1), (2, 4), (3, 1))
    assert bench.run().trials[0].steps == 8
    assert bench.trained[4:] == [(0.1, 1, 3, 4), (0.1, 1, 4, 8)]
    assert bench.dispatcher.open.steps_repeated == 0


@pytest.mark.parametrize(("seconds", "least"), [(0.3, 1), (9.0, 1), (11.0, 2)])
def test_a_stage_that_pays_or_has_just_begun_goes_on(
    seconds: float, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "PROVEN_STEPS", least)
    bench, _ = moved(seconds, 1)
    assert bench.stops == []


def test_a_run_cut_off_in_a_move_asks_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "PROVEN_STEPS", 1)
    before, _ = moved(11.0, 1)
    again = Bench(4, Scale(max=4), trials=before.trials).resume(Ladder((4, 1, 1)), before).join()
    assert again.run().trials[0].steps == 8
    assert again.trained[0] == (0.1, 4, 2, 4)


def test_needs_of_several_devices_fail_under_scale() -> None:
    bench = ladder(2, 1, 1, devices_of=lambda needs: 2)
    assert [trial.state.value for trial in bench.trials.values()] == ["FAIL", "FAIL"]
    assert bench.trials[0].message == (
        "needs must ask for 1 device where scale gives a trial more of them, got 2"
    )


def test_trials_trained_alone_keep_one_device() -> None:
    bench = ladder(4, 1, 1, trains_alone=True)
    assert bench.devices == [((0, 1),)] * 4


def test_needs_decide_which_workers_count() -> None:
    def needs_of(values: Mapping[str, Any]) -> Needs:
        return Needs.of({"GPU": 1})

    bench = Bench(8, Scale(max=8), needs_of=needs_of).begin(Ladder((4, 1, 1)))
    joined = tuple(
        WorkerJoined(worker=f"w{n}", resources={"GPU": 1} if n < 2 else {}) for n in range(8)
    )
    bench.tell(WorkersJoined(workers=joined))
    assert bench.run().devices[0] == ((0, 1), (2, 2))


def minutes(devices: int) -> float:
    return 60.0 / devices


def begun_alone(workers: int = 4, trials: int = 1, **options: Any) -> tuple[Bench, RunStage]:
    """Return a run whose first trial has trained a step on one device; its stage."""
    kept = (trials, 1, 1)
    bench = Bench(workers, Scale(max=workers), minutes, **options).begin(Ladder(kept)).join()
    order = bench.orders.pop(0)
    bench.tell(Progress(attempt=order.attempt, step=1, seconds=60.0))
    return bench, order


def test_a_running_stage_gets_the_idle_workers() -> None:
    bench, order = begun_alone()
    assert bench.ask().stops == [order.attempt]
    end_early(bench, order, 1)
    assert bench.devices == [((0, 1), (1, 4))]
    assert [row["devices"] for row in bench.rows] == [[[0, 1], [1, 4]]]
    assert bench.run().trials[0].steps == 8
    assert bench.trained == [(0.1, 4, 1, 2), (0.1, 4, 2, 4), (0.1, 4, 4, 8)]
    assert bench.dispatcher.open.steps_repeated == 0


def test_a_stage_that_ends_before_it_is_stopped_keeps_one_device() -> None:
    bench, order = begun_alone()
    bench.ask().train(order)
    assert bench.devices[0] == ((0, 1), (2, 4))
    assert bench.run().trials[0].steps == 8


def test_workers_taken_meanwhile_do_not_hold_a_stage_up() -> None:
    bench, order = begun_alone()
    bench.ask()
    for worker in [f"w{n}" for n in range(4) if f"w{n}" != order.worker][:2]:
        bench.tell(WorkerLost(worker=worker))
    end_early(bench, order, 1)
    assert bench.devices == [((0, 1), (1, 2))]
    assert bench.run().trials[0].steps == 8


def test_a_run_cut_off_in_a_growth_asks_for_the_rest() -> None:
    before, _ = begun_alone()
    before.ask()
    again = Bench(4, Scale(max=4), minutes, trials=before.trials)
    again.resume(Ladder((1, 1, 1)), before).join()
    assert again.run().trials[0].steps == 8
    assert again.trained[0] == (0.1, 1, 0, 2)


def test_a_grown_trial_keeps_its_devices_after_a_crash() -> None:
    before, order = begun_alone()
    end_early(before.ask(), order, 1)
    again = Bench(4, Scale(max=4), minutes, trials=before.trials)
    again.resume(Ladder((1, 1, 1)), before).join().run()
    assert again.trained == [(0.1, 4, 1, 2), (0.1, 4, 2, 4), (0.1, 4, 4, 8)]
    assert again.rows == []
    assert replay(Ladder((1, 1, 1)), map(read_record, [*before.log, *again.log]), LOSS).identical


def test_no_stage_is_stopped_while_its_speed_is_unknown() -> None:
    bench = Bench(4, Scale(max=4), minutes).begin(Ladder((1, 1, 1))).join()
    assert bench.ask().stops == []


def test_stages_trained_alone_do_not_grow() -> None:
    bench, _ = begun_alone(trains_alone=True)
    assert bench.ask().stops == []


def test_stages_do_not_grow_into_busy_workers() -> None:
    bench, _ = begun_alone(workers=2, trials=2)
    assert bench.ask().stops == []


class Whole(Ladder):
    """Trains each trial to its end at once."""

    def climb(self) -> list[Decision]:
        self.rung += 1
        self.waiting = set(range(self.kept[0]))
        ends = [Extend(trial=n, until=self.max_steps) for n in sorted(self.waiting)]
        return [Finish()] if self.rung else [*ends]


def test_a_trial_left_fewer_devices_grows_when_workers_return() -> None:
    bench = Bench(4, Scale(max=4), minutes).begin(Whole((1,))).join()
    order = bench.orders.pop(0)
    bench.tell(Progress(attempt=order.attempt, step=1, seconds=60.0))
    end_early(bench.ask(), order, 1)
    (order,) = bench.orders
    lost = [f"w{n}" for n in range(4) if f"w{n}" != order.worker][:1]
    bench.lose(order.worker, *lost)
    assert bench.devices == [((0, 1), (1, 2))]
    order = bench.orders.pop(0)
    bench.join()
    bench.stops.clear()
    bench.tell(Progress(attempt=order.attempt, step=2, seconds=30.0))
    assert bench.ask().stops == [order.attempt]
    end_early(bench, order, 2)
    assert bench.devices == [((0, 1), (1, 2), (2, 4))]
    assert bench.run().trials[0].steps == 8
    assert bench.dispatcher.open.steps_repeated == 0


def test_devices_of_reported_steps_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def periods(self: DeviceChoices, trial: TrialRecord, **options: Any) -> Periods:
        return ((0, 1), (1, 2)) if trial.steps else trial.devices

    monkeypatch.setattr(DeviceChoices, "periods", periods)
    with pytest.raises(InternalError, match="keep its devices up to step 2, got 1, 2 from step 1"):
        ladder(1, 1, 1)
