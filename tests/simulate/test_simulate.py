"""Simulated studies: virtual times that were worked out by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, MultiStep, Sequence
from dasktune.types import Decision, Extend, Finish, Register, Report, Stop, TrialState

SPLIT_AT_6 = [Constant(0.1), MultiStep(0.1, milestones=[6], gamma=0.1)]
STEPS = 10


def grid(rates: list[Sequence], steps: int = STEPS) -> dt.algos.Grid:
    return dt.algos.Grid(dt.Space(lr=rates), max_steps=steps)


def height(values: Mapping[str, object], step: int) -> float:
    return float(str(values["lr"])) * step


def of_kind(found: object, kind: str) -> list[tuple[float, int]]:
    return [(one.at, one.step) for one in found.events if one.kind == kind]


@pytest.mark.parametrize(
    ("workers", "merge", "seconds", "executed"),
    [
        (1, True, 6 + 4 + 4, 14),
        (2, True, 6 + 4, 14),
        (1, False, 10 + 10, 20),
        (2, False, 10, 20),
    ],
)
def test_simulate_two_parting_trials_share_the_beginning(
    workers: int, merge: bool, seconds: float, executed: int
) -> None:
    found = dt.simulate(grid(SPLIT_AT_6), height, workers=workers, merge=merge)
    summary = found.summary()
    assert found.seconds == seconds
    assert summary["wall_seconds"] == seconds
    assert summary["steps_executed"] == executed
    assert summary["worker_seconds"] == executed
    assert summary["steps_repeated"] == 0


def test_simulate_longest_path_goes_first() -> None:
    # The first and the third share 8 steps, the second leaves them after 2.
    rates = [Constant(0.1), MultiStep(0.1, [2], 0.1), MultiStep(0.1, [8], 0.1)]
    found = dt.simulate(grid(rates), height, workers=2)
    assert found.summary()["steps_executed"] == 2 + 8 + 6 + 2 + 2
    # After 2 steps both workers have a path of 8; what parts at 8 comes last, though ready then.
    assert found.seconds == 2 + 8 + 2
    assert dt.simulate(grid(rates), height, workers=3).seconds == STEPS


def test_simulate_three_waves_on_two_workers() -> None:
    # Nothing is shared: 5 trials of 10 steps on 2 workers need 3 rounds.
    rates = [Constant(0.1 * n) for n in range(1, 6)]
    assert dt.simulate(grid(rates), height, workers=2).seconds == 30
    assert dt.simulate(grid(rates), height, workers=5).seconds == 10
    assert dt.simulate(grid(rates), height, workers=50).seconds == 10


def test_simulate_step_takes_the_given_time() -> None:
    assert dt.simulate(grid(SPLIT_AT_6), height, seconds_per_step=0.5).seconds == 7.0
    assert dt.simulate(grid(SPLIT_AT_6), height, seconds_per_step=0.0).seconds == 0.0
    found = dt.simulate(
        grid(SPLIT_AT_6),
        height,
        workers=2,
        seconds_per_step=lambda values: 1.0 if values["lr"] == 0.1 else 3.0,
    )
    assert found.seconds == 6 + 4 * 3.0
    assert found.summary()["worker_seconds"] == 6 + 4 + 4 * 3.0


def test_simulate_best_follows_curve_and_direction() -> None:
    found = dt.simulate(grid(SPLIT_AT_6), height, metric="height", direction="maximize")
    assert [trial.value for trial in found.trials] == pytest.approx([1.0, 0.1])
    assert found.trials[0].metrics[10] == {"height": pytest.approx(1.0)}
    assert found.best_trial.number == 0
    assert dt.simulate(grid(SPLIT_AT_6), height).best_trial.number == 1
    assert {trial.state for trial in found.trials} == {TrialState.COMPLETE}


def test_simulation_events_have_worker_kind_and_time() -> None:
    found = dt.simulate(grid(SPLIT_AT_6), height, workers=2)
    assert of_kind(found, "started") == [(0.0, 0), (6.0, 6), (6.0, 6)]
    assert of_kind(found, "ended") == [(6.0, 6), (10.0, 10), (10.0, 10)]
    assert [one.at for one in found.events] == sorted(one.at for one in found.events)
    assert len({one.attempt for one in found.events}) == 3


class Scripted(Tuner):
    """Does what its script says after each report, in order."""

    max_steps = STEPS

    def __init__(self, first: list[Decision], *then: list[Decision]) -> None:
        self._script = [first, *then]

    def identity(self) -> dict[str, object]:
        return {"tuner": "Scripted"}

    def ask(self, capacity: int) -> list[Decision]:
        return self._script.pop(0) if self._is_new() else []

    def _is_new(self) -> bool:
        self._was_asked, was = True, getattr(self, "_was_asked", False)
        return not was

    def tell(self, report: Report) -> list[Decision]:
        return self._script.pop(0) if self._script else []

    def tell_failure(self, trial: int) -> list[Decision]:
        return []

    def snapshot(self) -> dict[str, object]:
        return {}

    def restore(self, snapshot: Mapping[str, object]) -> None:
        return


class Ending(Scripted):
    """Ends when no more is asked for."""

    def __init__(self, first: list[Decision], *then: list[Decision]) -> None:
        super().__init__(first, *then)
        self._open = sum(isinstance(one, Extend) for part in (first, *then) for one in part)

    def tell(self, report: Report) -> list[Decision]:
        self._open -= 1
        return super().tell(report) if self._script else [Finish()] if not self._open else []


def register(*rates: Sequence) -> list[Decision]:
    return [
        Register(trial=number, sequences={"lr": rate}, max_steps=STEPS)
        for number, rate in enumerate(rates)
    ]


def test_paused_trial_continues_from_its_state() -> None:
    script = [
        [*register(Constant(0.1)), Extend(trial=0, until=4)],
        [Extend(trial=0, until=9)],
        [Finish()],
    ]
    found = dt.simulate(Scripted(*script), height)
    assert found.seconds == 9.0
    assert found.summary()["steps_executed"] == 9
    assert of_kind(found, "started") == [(0.0, 0), (4.0, 4)]
    (trial,) = found.trials
    assert (trial.state, trial.steps) == (TrialState.PRUNED, 9)


def test_later_trial_parts_where_an_earlier_one_changed() -> None:
    """The second trial is proposed after the first has ended: it trains only what differs."""
    space = dt.Space(lr=[MultiStep(0.1, [7], gamma) for gamma in (0.1, 0.5)])
    tuner = dt.algos.Random(space, trials=2, max_steps=12, sampler=dt.samplers.Branching(startup=1))
    found = dt.simulate(tuner, height)
    assert found.summary()["steps_executed"] == 12 + 5


def test_unwanted_stage_ends_at_its_next_step() -> None:
    # Trial 1 takes 1 s for 2 steps; its report at 1 s stops trial 0 within its first step.
    script = [
        [
            *register(Constant(0.1), Constant(0.2)),
            Extend(trial=0, until=STEPS),
            Extend(trial=1, until=2),
        ],
        [Stop(trial=0), Finish()],
    ]
    found = dt.simulate(
        Scripted(*script),
        height,
        workers=2,
        seconds_per_step=lambda values: 2.0 if values["lr"] == 0.1 else 0.5,
    )
    stopped, short = found.trials
    assert (stopped.state, stopped.steps, stopped.value) == (TrialState.PRUNED, 0, None)
    assert (short.state, short.steps) == (TrialState.PRUNED, 2)
    assert of_kind(found, "ended") == [(1.0, 2), (2.0, 1)], "the step it was in is not cut short"
    assert found.summary()["steps_executed"] == 3


def test_shared_stage_continues_for_remaining_trials() -> None:
    script = [
        [
            *register(Constant(0.1), MultiStep(0.1, [6], 0.1), Constant(0.2)),
            *(Extend(trial=number, until=STEPS) for number in (0, 1)),
            Extend(trial=2, until=1),
        ],
        [Stop(trial=0)],
        [Finish()],
    ]
    found = dt.simulate(Scripted(*script), height, workers=2)
    assert [trial.state for trial in found.trials][:2] == [TrialState.PRUNED, TrialState.COMPLETE]
    assert found.summary()["steps_executed"] == 10 + 1
    assert found.seconds == 10.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be an int >= 1, got 0"),
        ({"workers": 1.5}, "workers must be an int >= 1, got 1.5"),
        ({"curves": "trace"}, "end in .zarr, .zarr.zip, .npz, got 'trace'"),
        ({"direction": "up"}, "direction must be 'maximize' or 'minimize', got 'up'"),
        ({"seconds_per_step": -1}, "seconds_per_step must be >= 0 or a function, got -1"),
        (
            {"curves": 3},
            "curves must be a function of \\(values, step\\), a Trace or its path, got 3",
        ),
        ({"report_every": 0}, "report_every must be an int >= 1, got 0"),
        ({"straggling": -0.5}, "straggling must be a number >= 0, got -0.5"),
        ({"drop": 1.0}, "drop must be a probability >= 0 and < 1, got 1.0"),
        ({"seed": None}, "seed must be an int >= 0, got None"),
        ({"limits": 3}, "limits must be dasktune.Limits, got 3"),
    ],
)
def test_simulate_invalid_argument_is_refused(options: dict[str, object], message: str) -> None:
    given = {"curves": height, **options}
    with pytest.raises(ConfigurationError, match=message):
        dt.simulate(grid(SPLIT_AT_6), **given)


def test_simulate_several_problems_are_raised_at_once() -> None:
    with pytest.raises(ConfigurationError) as error:
        dt.simulate(grid(SPLIT_AT_6), height, workers=0, drop=2, seed=-1)
    assert len(error.value.problems) == 3


def test_simulate_default_measures_every_step() -> None:
    (trial,) = dt.simulate(grid([Constant(0.1)]), height).trials
    assert trial.metrics == {s: {"value": pytest.approx(0.1 * s)} for s in range(1, 11)}
    (trial,) = dt.simulate(grid([Constant(0.1)]), height, report_every=4).trials
    assert list(trial.metrics) == [4, 8, 10]


def test_save_point_at_a_due_state_keeps_both() -> None:
    # At 4 s trial 2 reports; that asks for 6, and the state at 4 is due at that very moment.
    late = MultiStep(0.1, [6], 0.1)
    script = [
        [
            *register(Constant(0.2), Constant(0.1), MultiStep(0.1, [4], 0.1)),
            Extend(trial=0, until=4),
            Extend(trial=1, until=STEPS),
            Extend(trial=2, until=STEPS),
        ],
        [Register(trial=3, sequences={"lr": late}, max_steps=STEPS), Extend(trial=3, until=STEPS)],
    ]
    found = dt.simulate(Ending(*script), height, workers=2)
    assert {trial.state for trial in found.trials} == {TrialState.PRUNED, TrialState.COMPLETE}
    assert found.summary()["steps_executed"] == 4 + 10 + 6 + 4


@pytest.mark.process
@pytest.mark.parametrize("first", ["", "import dasktune.simulate\n"])
def test_simulate_is_callable_after_any_import(first: str) -> None:
    script = f"""
import dasktune as dt
{first}
tuner = dt.algos.Grid(dt.Space(lr=[0.1]), max_steps=3)
assert dt.simulate(tuner, lambda values, step: 0.0).seconds == 3.0
import dasktune.simulate
tuner = dt.algos.Grid(dt.Space(lr=[0.1]), max_steps=3)
assert dt.simulate(tuner, lambda values, step: 0.0).seconds == 3.0
from dasktune.simulate import Simulation, simulate
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_simulate_is_deterministic() -> None:
    rates = [Constant(0.1), MultiStep(0.1, [2], 0.1), MultiStep(0.1, [8], 0.1), Constant(0.3)]
    first, second = (dt.simulate(grid(rates), height, workers=3) for _ in range(2))
    assert first.events == second.events
    assert first.trials == second.trials


def test_resume_false_trains_branches_from_step_0() -> None:
    from dasktune.sequences import MultiStep

    space = dt.Space(lr=[0.1, MultiStep(0.1, milestones=[6], gamma=0.1)])

    def run(*, resume: bool) -> tuple[float, int, int]:
        found = dt.simulate(
            dt.algos.Grid(space, max_steps=10), lambda values, step: 1.0, resume=resume
        )
        summary = found.summary()
        return found.seconds, summary["steps_executed"], summary["steps_repeated"]

    # Steps 0-6 and 6-10 in one go, then the other branch: 4 steps, or all 10 again.
    assert run(resume=True) == (14.0, 14, 0)
    assert run(resume=False) == (20.0, 20, 6)


def test_resume_false_reported_job_continues() -> None:
    script = [
        [*register(Constant(0.1)), Extend(trial=0, until=9, reports=(1, 2, 3, 5, 7))],
        *([] for _ in range(5)),
        [Finish()],
    ]
    found = dt.simulate(Scripted(*script), height, resume=False)
    assert (found.seconds, found.steps_executed, found.steps_repeated) == (9.0, 9, 0)


def test_resume_false_paused_trial_begins_again() -> None:
    script = [
        [*register(Constant(0.1)), Extend(trial=0, until=4)],
        [Extend(trial=0, until=9)],
        [Finish()],
    ]
    found = dt.simulate(Scripted(*script), height, resume=False)
    assert (found.seconds, found.steps_executed, found.steps_repeated) == (4 + 9, 13, 4)
    assert found.completed == [], "nobody asked for all ten steps"
