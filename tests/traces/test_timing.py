"""Times on simulated workers: of each step, and beside the steps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune._engine.limits import Limits
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, MultiStep
from dasktune.simulate import Trace
from dasktune.simulate.jobs import SimulatedJob
from dasktune.traces.timing import EvenPace, MeasuredPace, Overheads
from dasktune.types import Decision, Extend, Finish, Rank, Register, Report
from tests.effort import examples
from tests.simulate.cases import STEPS, UNIQUE, spans

OVERHEADS = Overheads(begin=7.0, build=5.0, load=3.0, save=1.0, report=2.0, handover=0.5)


def trace(loss: list[list[float]], **more: object) -> Trace:
    values = np.array(loss)[:, :, None]
    return Trace(metrics=("loss",), values=values, configurations=({},) * len(loss), **more)


@given(
    seconds=st.lists(st.floats(0, 10), min_size=1, max_size=8),
    lead=st.floats(0, 5),
    save=st.floats(0, 2),
    now=st.floats(0, 200),
    saves=st.sets(st.integers(1, 7)),
)
def test_job_position_is_the_last_complete_step(
    seconds: list[float], lead: float, save: float, now: float, saves: set[int]
) -> None:
    elapsed = tuple(itertools.accumulate(seconds, initial=0.0))
    job = SimulatedJob(
        order=None,  # type: ignore[arg-type]  # what is asked here does not look at it
        first=0,
        launched=1.0,
        pace=MeasuredPace(elapsed, min(seconds)),
        stop=len(seconds),
        saves=saves,
        lead=lead,
        save=save,
    )
    times = [job.time_of(step) for step in range(len(seconds) + 1)]
    assert times == sorted(times)
    reached = [step for step, at in enumerate(times) if step and at <= now]
    assert job.position(now) == max(reached, default=0)
    assert job.due(job.stop) == times[-1] + save


@given(seconds=st.floats(0, 10), factor=st.floats(1, 3), steps=st.integers(0, 20))
def test_measured_pace_of_equal_steps_is_even_pace(
    seconds: float, factor: float, steps: int
) -> None:
    elapsed = tuple(itertools.accumulate([seconds] * 20, initial=0.0))
    even, measured = EvenPace(seconds).slower(factor), MeasuredPace(elapsed, seconds).slower(factor)
    assert measured.between(0, steps) == pytest.approx(even.between(0, steps))
    assert measured.least == even.least


def test_stage_takes_start_steps_and_save() -> None:
    recorded = trace([[3.0, 2.0], [2.0, 1.0]], seconds=np.array([[1.0, 2.0], [4.0, 4.0]]),
                     overheads=OVERHEADS)  # fmt: skip
    found = dt.simulate(dt.algos.Grid(recorded.space(), max_steps=2), recorded, metric="loss")
    first, second = spans(found)
    assert (first[0].at, first[1].at) == (7.0, 7 + 0.5 + 5 + 3 + 1)
    assert (second[0].at, second[1].at) == (16.5, 16.5 + 0.5 + 5 + 8 + 1)
    # The values are known as they are measured, and the tuner is told when they are durable.
    assert [one.seconds for one in found.incumbents] == [13.5, 15.5, 30.0]
    assert found.completed == [15.5 + 2, 30.0 + 2]
    assert found.seconds == 32.0


@pytest.mark.parametrize(
    ("loss", "seconds"),
    [
        # Both are built and trained one step; the better was the last on the worker.
        ([[3.0, 2.0], [2.5, 1.0]], 10 + 1 + 10 + 1 + 1),
        # The better was the first, and the worker holds the other.
        ([[2.0, 1.5], [2.5, 2.0]], 10 + 1 + 10 + 1 + 100 + 1),
    ],
)
def test_stage_loads_state_unless_worker_holds_it(loss: list[list[float]], seconds: float) -> None:
    recorded = trace(loss, overheads=Overheads(build=10.0, load=100.0))
    tuner = dt.algos.SHA(
        recorded.space(), trials=2, max_steps=2, min_steps=1, eta=2, sampler="grid"
    )
    assert dt.simulate(tuner, recorded, metric="loss").seconds == seconds


def test_given_seconds_per_step_drop_overheads() -> None:
    recorded = trace([[1.0, 2.0]], overheads=OVERHEADS)
    tuner = dt.algos.Grid(recorded.space(), max_steps=2)
    assert dt.simulate(tuner, recorded, metric="loss", seconds_per_step=2.0).seconds == 4.0


@pytest.mark.parametrize("limits", [Limits(steps=5), Limits(seconds=9.0), Limits(worker_seconds=9)])
def test_limits_with_uneven_steps_are_met_at_the_step(limits: Limits) -> None:
    seconds = np.array([[1.0, 0.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    recorded = trace([[4.0, 3.0, 2.0, 1.0]] * 2, seconds=seconds, overheads=Overheads(save=0.5))
    tuner = dt.algos.Grid(recorded.space(), max_steps=4)
    found = dt.simulate(tuner, recorded, metric="loss", workers=2, limits=limits)
    whole = dt.simulate(
        dt.algos.Grid(recorded.space(), max_steps=4), recorded, metric="loss", workers=2
    )
    ends = sorted([1.0, 1.0, 4.0, 5.0, 2.0, 4.0, 6.0, 8.0])
    if limits.steps:
        assert (found.seconds, found.steps_executed) == (ends[4], 5)
    elif limits.worker_seconds:
        assert found.worker_seconds == pytest.approx(9.0)
    else:
        assert found.seconds == pytest.approx(min(9.0, whole.seconds))


def test_simulation_shares_steps_as_the_study_did() -> None:
    # The five trials of the cases: those that begin alike share their first steps.
    shared = ((0, 0), (0, 3), (0, 7), (2, 9), (0, 0))
    rows = np.arange(5 * STEPS, dtype=float).reshape(5, STEPS)
    for number, (other, steps) in enumerate(shared):
        rows[number, :steps] = rows[other, :steps]
    recorded = trace(rows.tolist(), shared=shared)
    found = dt.simulate(dt.algos.Grid(recorded.space(), max_steps=STEPS), recorded, metric="loss")
    assert found.steps_executed == UNIQUE
    for number, trial in enumerate(found.trials):
        known = [metrics["loss"] for _, metrics in sorted(trial.metrics.items())]
        assert known == rows[number].tolist()
    alone = dt.simulate(
        dt.algos.Grid(recorded.space(), max_steps=STEPS), recorded, metric="loss", merge=False
    )
    assert alone.steps_executed == 5 * STEPS


def test_simulation_trains_equal_configurations_once() -> None:
    recorded = trace([[2.0, 1.0], [2.0, 1.0]], shared=((0, 0), (0, 2)))
    found = dt.simulate(dt.algos.Grid(recorded.space(), max_steps=2), recorded, metric="loss")
    assert (len(found.trials), found.steps_executed) == (2, 2)


def test_space_order_takes_every_configuration_once() -> None:
    recorded = trace([[float(number)] for number in range(9)])

    def taken(order: int | None) -> list[object]:
        tuner = dt.algos.Random(
            recorded.space(order=order), trials=9, max_steps=1, sampler="grid", seed=5
        )
        found = dt.simulate(tuner, recorded, metric="loss")
        return [trial.params["configuration"] for trial in found.trials]

    assert taken(None) == list(range(9))
    orders = [taken(order) for order in range(4)]
    assert all(sorted(order) == list(range(9)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert taken(2) == orders[2]


def test_metric_between_measurements_keeps_its_value() -> None:
    nan = float("nan")
    recorded = trace(
        [[nan, 5.0, nan, nan, 2.0, nan]],
        measured=np.array([[False, True, False, False, True, False]]),
    )
    curve = recorded.curve("loss")
    found = [curve({"configuration": 0}, step) for step in range(1, 7)]
    np.testing.assert_array_equal(found, [nan, 5.0, 5.0, 5.0, 2.0, nan])


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan"), "1"])
def test_invalid_overhead_is_refused(seconds: object) -> None:
    with pytest.raises(ConfigurationError, match="overheads: save must be a number >= 0"):
        Overheads(save=seconds)  # type: ignore[arg-type]


@given(
    drop=st.floats(0, 0.2),
    straggling=st.floats(0, 1),
    workers=st.integers(1, 4),
    seed=st.integers(0, 99),
    report=st.floats(0, 5),
)
@settings(max_examples=examples(40), deadline=None)
def test_simulation_with_mishaps_completes_every_trial(
    drop: float, straggling: float, workers: int, seed: int, report: float
) -> None:
    recorded = trace(
        [[float(step) for step in range(1, 7)]] * 5,
        shared=((0, 0), (0, 2), (1, 4), (0, 0), (3, 5)),
        overheads=Overheads(build=1.0, load=0.5, save=0.25, report=report, handover=0.125),
    )
    found = dt.simulate(
        dt.algos.Random(recorded.space(order=seed), trials=5, max_steps=6, sampler="grid"),
        recorded,
        metric="loss",
        workers=workers,
        drop=drop,
        straggling=straggling,
        seed=seed,
    )
    assert [trial.steps for trial in found.trials] == [6] * 5
    assert found.steps_executed - found.steps_repeated == 6 + 4 + 2 + 6 + 1
    assert len(found.completed) == 5


class Raising(dt.algos.Tuner):
    """Trains two trials in full, and raises the first one's priority at each of its reports."""

    max_steps = 4

    def ask(self, capacity: int) -> list[Decision]:
        constants = [{"configuration": Constant(number)} for number in (0, 1)]
        registers = [
            Register(trial=number, sequences=one, max_steps=4)
            for number, one in enumerate(constants)
        ]
        if self.open:
            return []
        self.open = {0, 1}
        first = Extend(trial=0, until=4, priority=1.0, reports=(1, 2, 3))
        return [*registers, first, Extend(trial=1, until=4, priority=0.5)]

    def tell(self, report: Report) -> list[Decision]:
        if report.step < 4:
            return [Rank(trial=report.trial, priority=1.0 + report.step)]
        self.open.remove(report.trial)
        return [] if self.open else [Finish()]

    def __init__(self) -> None:
        self.open: set[int] = set()

    def tell_failure(self, trial: int) -> list[Decision]:
        return []

    def identity(self) -> dict[str, object]:
        return {"tuner": "Raising"}


@pytest.mark.parametrize("report", [0.0, 0.01, 0.25])
def test_trial_continues_before_its_report_arrives(report: float) -> None:
    recorded = trace([[4.0, 3.0, 2.0, 1.0]] * 2, overheads=Overheads(load=5.0, report=report))
    found = dt.simulate(Raising(), recorded, metric="loss")
    assert found.seconds == pytest.approx(8.0 + report), "nothing was loaded again"
    assert [one.step for one in found.events if one.kind == "ended"] == [1, 2, 3, 4, 4]


def test_speeds_know_slow_hyper_parameters_of_a_trace() -> None:
    sizes = [16, 64, 64, 64, 16]
    seconds = [3.0 if size == 16 else 1.0 for size in sizes]
    for configurations, order in (
        ([{"batch_size": size, "lr": 0.1 * size} for size in sizes], [0, 1, 4, 2, 3]),
        ([{"lr": 0.1 * size} for size in sizes], [0, 1, 2, 3, 4]),
    ):
        recorded = Trace.from_arrays(
            {"loss": [[1.0]] * 5}, seconds=seconds, configurations=configurations
        )
        tuner = dt.algos.Grid(recorded.space(), max_steps=1)
        found = dt.simulate(tuner, recorded, metric="loss")
        took = [end.at - start.at for start, end in spans(found)]
        assert took == [seconds[number] for number in order]


def test_hyper_parameters_are_those_of_the_trace() -> None:
    rate = MultiStep(0.1, milestones=[2], gamma=0.5)
    configurations = [{"lr": rate.to_json(), "layers": [3, 4], "who": {"is": 1}}, {"lr": 0.3}]
    recorded = Trace.from_arrays({"loss": np.ones((2, 4))}, configurations=configurations)
    first, second = ({"configuration": Constant(number)} for number in (0, 1))
    assert recorded.hyper_parameters(first, 0) == {"lr": 0.1}
    assert recorded.hyper_parameters(first, 3) == {"lr": 0.05}
    assert recorded.hyper_parameters(second, 3) == {"lr": 0.3}
