"""Stragglers take longer, dropped jobs are done again, and nobody else is any the wiser."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune._engine.limits import Limits
from dasktune.algos.curves import Curve, Persistence, Prediction, Predictor
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant
from dasktune.simulate.jobs import Mishaps
from dasktune.space import Float
from dasktune.types import Step, TrialState
from tests.effort import examples

from .cases import BRANCHING, STEPS, UNIQUE, grid, spans, wavy


def one_trial(steps: int) -> dt.algos.Grid:
    return dt.algos.Grid(dt.Space(lr=[0.1]), max_steps=steps)


def test_straggler_takes_1_plus_abs_z_times_as_long() -> None:
    times = [
        dt.simulate(one_trial(4), wavy, straggling=2.0, seed=seed).seconds / 4 - 1
        for seed in range(400)
    ]
    assert min(times) > 0
    # |z| of a normal distribution: mean sigma * sqrt(2 / pi), half of them below 0.6745 sigma.
    assert statistics.mean(times) == pytest.approx(2 * math.sqrt(2 / math.pi), rel=0.1)
    assert statistics.median(times) == pytest.approx(2 * 0.6745, rel=0.1)


def test_stragglers_are_independent_and_seeded() -> None:
    rates = [Constant(0.1 * n) for n in range(1, 6)]
    space = dt.Space(lr=rates)
    first, again, other = (
        dt.simulate(dt.algos.Grid(space, max_steps=9), wavy, workers=2, straggling=1.0, seed=seed)
        for seed in (1, 1, 2)
    )
    assert first.events == again.events != other.events
    assert len({end.at - start.at for start, end in spans(first)}) == 5


def test_survival_is_one_minus_p_to_the_seconds() -> None:
    mishaps = Mishaps(drop=0.02, seed=3)
    for seconds in (1.0, 20.0, 60.0):
        lived = sum(mishaps.draw(seconds)[1] == math.inf for _ in range(4000)) / 4000
        assert lived == pytest.approx(0.98**seconds, abs=0.03)


def test_drop_time_is_within_the_multiplied_time() -> None:
    mishaps = Mishaps(straggling=3.0, drop=0.2, seed=0)
    drawn = [mishaps.draw(10.0) for _ in range(500)]
    moments = [(at, factor) for factor, at in drawn if at < math.inf]
    assert all(0 <= at < 10.0 * factor for at, factor in moments)
    assert max(at / factor for at, factor in moments) > 9
    assert all(at == math.inf for _, at in [Mishaps(seed=1).draw(1e9)])


def test_drop_rate_does_not_change_stragglers() -> None:
    few, many = (Mishaps(straggling=1.0, drop=drop, seed=7) for drop in (0.0, 0.5))
    assert [few.draw(3)[0] for _ in range(9)] == [many.draw(3)[0] for _ in range(9)]


@settings(max_examples=examples(40), deadline=None)
@given(
    workers=st.integers(1, 4),
    straggling=st.sampled_from([0.0, 1.5]),
    drop=st.sampled_from([0.0, 0.05, 0.3]),
    merge=st.booleans(),
    resume=st.booleans(),
    seed=st.integers(0, 99),
)
def test_mishaps_change_nothing_but_time(
    workers: int, straggling: float, drop: float, merge: bool, resume: bool, seed: int
) -> None:
    plain = dt.simulate(grid(), wavy, workers=workers, merge=merge)
    found = dt.simulate(
        grid(),
        wavy,
        workers=workers,
        straggling=straggling,
        drop=drop,
        merge=merge,
        resume=resume,
        seed=seed,
    )
    assert {trial.state for trial in found.trials} == {TrialState.COMPLETE}
    assert [trial.value for trial in found.trials] == [trial.value for trial in plain.trials]
    assert [trial.metrics.keys() for trial in found.trials] == [{*range(1, STEPS + 1)}] * 5
    assert found.incumbents[-1].value == plain.incumbents[-1].value
    assert len(found.completed) == len(BRANCHING)
    assert max(found.completed) <= found.seconds
    unique = UNIQUE if merge else len(BRANCHING) * STEPS
    assert found.steps_executed - found.steps_repeated == unique
    assert found.worker_seconds >= found.steps_executed - 1e-9
    dropped = [end for _, end in spans(found) if end.kind == "dropped"]
    assert bool(dropped) <= (drop > 0)
    if resume:
        assert found.steps_executed == sum(end.step - start.step for start, end in spans(found))
    busy = sum(end.at - start.at for start, end in spans(found))
    assert found.worker_seconds == pytest.approx(busy)


def test_dropped_job_frees_worker_and_restarts_at_its_start() -> None:
    found = dt.simulate(one_trial(40), wavy, drop=0.05, seed=5)
    jobs = spans(found)
    kinds = [end.kind for _, end in jobs]
    assert kinds[-1] == "ended"
    assert set(kinds[:-1]) == {"dropped"}
    assert all(start.step == 0 for start, _ in jobs)
    assert all(end.at == later.at for (_, end), (later, _) in pairwise(jobs))
    # A whole step is a step also if it is lost.
    lost = [math.floor(end.at - start.at + 1e-9) for start, end in jobs[:-1]]
    assert [end.step for _, end in jobs[:-1]] == lost
    assert found.steps_executed == 40 + sum(lost)
    assert found.steps_repeated <= sum(lost)


def test_hopeless_job_without_time_limit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"drop must leave jobs a chance .* of 60 s ends"):
        dt.simulate(one_trial(60), wavy, drop=0.5)
    found = dt.simulate(one_trial(60), wavy, drop=0.5, limits=Limits(seconds=50))
    assert (found.seconds, found.limit) == (50, "50 s have passed")
    assert found.completed == []


@pytest.mark.parametrize(("resume", "seconds"), [(True, 9.0), (False, 1.0 + 3.0 + 9.0)])
def test_asha_on_9_workers_completes_first_trial_as_published(resume: bool, seconds: float) -> None:
    # Section 3.2: 1 x time(R) if jobs are resumed, else 13/9 x time(R).
    def curve(values: object, step: int) -> float:
        return wavy(values, 1) / step

    tuner = dt.algos.ASHA(
        dt.Space(lr=Float(0.0, 1.0)), trials=9, max_steps=9, min_steps=1, eta=3, brackets=(0,)
    )
    found = dt.simulate(tuner, curve, workers=9, merge=False, resume=resume)
    assert found.completed == [seconds]
    assert found.seconds == seconds


def test_resume_false_each_rung_starts_at_step_0() -> None:
    tuner = dt.algos.ASHA(
        dt.Space(lr=Float(0.0, 1.0)), trials=4, max_steps=4, min_steps=1, eta=4, brackets=(0,)
    )
    found = dt.simulate(tuner, lambda values, step: values["lr"], merge=False, resume=False)
    # One worker: four jobs of 1 step, then the best again, to step 4.
    assert (found.seconds, found.steps_executed, found.steps_repeated) == (4 + 4, 8, 1)


class Cloudy(Persistence):
    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        raise ValueError("cloudy")


@pytest.mark.parametrize(
    ("predictor", "state"), [(Persistence(), "PRUNED"), (Cloudy(), "COMPLETE")]
)
def test_failing_predictor_does_not_end_the_simulation(
    caplog: pytest.LogCaptureFixture, predictor: Predictor, state: str
) -> None:
    tuner = dt.algos.EarlyTerm(
        dt.Space(lr=[0.1, 1.0]),
        trials=2,
        max_steps=8,
        every=2,
        sampler="grid",
        predictor=predictor,
    )
    found = dt.simulate(tuner, lambda hp, step: 100 * hp["lr"] + 1 / step, workers=1)
    assert [trial.state.value for trial in found.trials] == ["COMPLETE", state]
    warned = "trial 1 cannot be predicted: ValueError: cloudy" in caplog.text
    assert warned == isinstance(predictor, Cloudy)
