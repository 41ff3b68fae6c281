"""The parts of a check of resume that need no process: arguments, limits, comparisons."""

import numpy as np
import pytest

from dasktune.errors import ConfigurationError
from dasktune.trainer.check_resume.check import (
    GPU_TOLERANCE,
    check_resume,
    effects_beyond,
    final_differences,
    tolerance_of,
)
from dasktune.trainer.check_resume.new_process import CheckJob, StepMeter
from tests.toy_trainers import Adding


def test_bad_arguments_are_refused_at_once():
    class Incomplete:
        build = setup = train = evaluate = load_state_dict = Adding.build

    with pytest.raises(ConfigurationError) as caught:
        check_resume(Incomplete, {"lr": 1.0}, split=6, total=6)
    assert caught.value.problems == (
        "Incomplete must define state_dict()",
        "split must be >= 1 and less than total, got 6 of 6",
    )


@pytest.mark.parametrize("split", [-1, 0, 6])
def test_split_must_leave_steps_on_both_sides(split):
    with pytest.raises(ConfigurationError, match=f"split must be >= 1 .* got {split} of 6"):
        check_resume(Adding, {"lr": 1.0}, split=split, total=6)


class Ticking:
    """A clock that goes on by one second each time it is read."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def job(**fields):
    given = {"part": "whole", "code": None, "values": (), "total": 7, "spans": ()}
    return CheckJob(**given, config={}, seed=0, device="cpu", folder="", path=(), **fields)


class Still:
    def advance(self, values):
        """Train nothing."""


def test_meter_counts_free_steps_before_the_time():
    meter = StepMeter(job(free=2, seconds=2.0), Ticking())
    for _ in range(2):
        assert not meter.is_over
        meter.advance(Still(), {})
    assert [meter.is_over, meter.is_over] == [False, True]
    assert meter.trained == 2


def test_meter_without_a_limit_never_reads_the_clock():
    clock = Ticking()
    meter = StepMeter(job(), clock)
    assert not meter.is_over
    assert clock.now == 1.0


@pytest.mark.parametrize(
    ("device", "deterministic", "tolerance"),
    [
        ("cpu", False, 0.0),
        ("cpu", True, 0.0),
        ("mps", False, 0.0),
        ("cuda", False, GPU_TOLERANCE),
        ("cuda:1", False, GPU_TOLERANCE),
        ("cuda", True, 0.0),
    ],
)
def test_only_gpus_that_are_not_deterministic_have_a_tolerance(device, deterministic, tolerance):
    trainer_class = type("Trainer", (Adding,), {"deterministic": deterministic})
    assert tolerance_of(trainer_class, device) == tolerance


@pytest.mark.parametrize(
    ("tolerance", "paths"), [(1e-3, []), (1e-6, ["metrics after step 3['loss']", "state['w']"])]
)
def test_tolerance_is_for_metrics_and_the_last_state(tolerance, paths):
    whole = {"metrics": {3: {"loss": 1.0}}, "final": {"w": np.ones(3), "generators": 1}}
    span = {"split": 2, "stop": 3, "metrics": {3: {"loss": 1.0001}}}
    rest = {"final": {"w": np.ones(3) * 1.0001, "generators": 2}}
    found = [*effects_beyond(tolerance, whole, span), *final_differences(whole, rest, tolerance)]
    assert [each.path for each in found] == paths
    assert list(final_differences(whole, {}, tolerance)) == []
