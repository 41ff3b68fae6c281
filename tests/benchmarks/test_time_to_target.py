"""The benchmark of times to a target gives all policies the same, and counts what they take."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dasktune.algos.curves import Curve, Persistence, Question
from dasktune.errors import ConfigurationError


@pytest.fixture
def timing(load: Any) -> ModuleType:
    module: ModuleType = load("time_to_target")
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with straight lines: configuration c comes to c/60, a step takes 2 s."""
    curves = np.arange(60)[:, None] / 60 * np.arange(1, 21) / 20
    np.savez(
        tmp_path / "lcbench_a.npz",
        tasks=np.array(["one"]),
        val_accuracy=curves[None],
        cum_time_s=np.broadcast_to(2.0 * np.arange(1, 21), (1, 60, 20)),
    )
    return tmp_path


def test_orders_differ_in_what_is_tried_and_policies_do_not(
    timing: ModuleType, folder: Path
) -> None:
    (of,) = timing.targets.load(folder)
    first, again, other = (timing.Conditions.drawn(of, order, 20, 4) for order in (0, 0, 1))
    assert first.numbers == again.numbers != other.numbers
    assert len(set(first.numbers)) == 20
    registered = {
        name: [one.params["configuration"] for one in make(first).configurations]
        for name, make in timing.TUNERS.items()
    }
    assert set(map(tuple, registered.values())) == {tuple(first.numbers)}


def test_full_runs_reach_the_target_in_the_time_that_they_have(
    timing: ModuleType, folder: Path
) -> None:
    (of,) = timing.targets.load(folder)
    assert of.target == pytest.approx(58 / 60)
    plan = timing.Plan(orders=6, slots=(1, 3), trials=10, policies=("Default",))
    one, three = plan.lines(of)
    assert one.reached == three.reached == 6
    assert all(0 < part < 1 for line in (one, three) for part in line.times)
    given = next(
        found
        for order in range(100)
        if (found := timing.Conditions.drawn(of, order, 10, 1)).soonest < math.inf
    )
    assert given.within == pytest.approx(10 * 40 + 40)
    place = min(given.numbers.index(number) for number in (58, 59) if number in given.numbers)
    found = timing.time_to("Default", given, timing.MemorisedAnswers())
    assert 40 * place < found <= 40 * (place + 1)
    assert one.times[0] == pytest.approx(found / given.within)


def test_the_oracle_trains_what_gets_there_soonest(timing: ModuleType, folder: Path) -> None:
    (of,) = timing.targets.load(folder)
    # Both have it at the last of their 20 steps: 59 has 0.934 before.
    assert [number for number, one in enumerate(of.soonest) if one < math.inf] == [58, 59]
    assert of.soonest[58] == pytest.approx(20 * 2.0)
    assert of.share == pytest.approx(2 / 60)
    plan = timing.Plan(orders=6, slots=(1,), trials=10, policies=(timing.ORACLE, "Default"))
    oracle, default = plan.lines(of)
    assert all(one <= other for one, other in zip(oracle.times, default.times, strict=True))
    assert oracle.times == pytest.approx([20 * 2.0 / (10 * 40 + 40)] * 6)


def test_configuration_below_target_counts_with_all_its_time(
    timing: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (of,) = timing.targets.load(folder)
    monkeypatch.setattr(timing, "time_to", lambda *arguments: None)
    plan = timing.Plan(orders=3, slots=(4,), trials=10, policies=("Default",))
    (line,) = plan.lines(of)
    assert (line.times, line.reached) == ((1.0, 1.0, 1.0), 0)


def test_a_prediction_is_computed_once(timing: ModuleType) -> None:
    class Counting(Persistence):
        calls = 0

        def predict(self, *arguments: object, **more: object) -> object:
            Counting.calls += 1
            return super().predict(*arguments, **more)

    curve = Curve(steps=(1, 2), scores=(0.1, 0.2), max_steps=9)
    answer = timing.MemorisedAnswers()
    found = [
        answer(Question(predictor=Counting(), curve=curve, steps=(5,), seed=seed))
        for seed in (1, 2, 3)
    ]
    assert Counting.calls == 1
    assert found[0] == found[2]


def test_ratios_are_pops_times_over_others(timing: ModuleType) -> None:
    def line(policy: str, kind: str, *times: float) -> object:
        more = {"task": f"{kind} x", "kind": kind, "slots": 4, "reached": 3}
        return timing.Line(policy=policy, times=times, **more)

    lines = [
        line("POP", "accuracy", 0.1, 0.2, 0.3),
        line("Bandit", "accuracy", 0.2, 0.3, 0.7),
        line("Default", "accuracy", 0.1, 0.1, 0.1),
        line("POP", "rl", 0.2, 0.2, 0.2),
        line("Default", "rl", 0.4, 0.4, 0.4),
    ]
    found = timing.ratios(lines)
    bandit = next(each for each in found if each.other.policy == "Bandit")
    assert (bandit.mean, bandit.median) == pytest.approx((0.5, 2 / 3))
    figures = {one.name: one for one in timing.figures(found[:2])}
    assert figures["accuracy: POP's mean time to target over Bandit's"].reached is True
    assert figures["accuracy: POP's mean time to target over Default's"].reached is False


def test_interval_of_equal_ratios_is_their_value(timing: ModuleType) -> None:
    def line(task: str, policy: str, *times: float) -> object:
        more = {"kind": "rl", "slots": 4, "reached": len(times)}
        return timing.Line(task=task, policy=policy, times=times, **more)

    lines = [
        line(task, policy, *times)
        for task, policy, times in (
            ("rl a", "POP", (0.1, 0.2)),
            ("rl a", "Default", (0.2, 0.4)),
            ("rl b", "POP", (0.3, 0.1, 0.2)),
            ("rl b", "Default", (0.6, 0.2, 0.4)),
        )
    ]
    figures = {each.name: each for each in timing.figures(timing.ratios(lines))}
    note = figures["rl: POP's median time to target over Default's"].note
    assert note.startswith("2.00 times as fast (2.00 to 2.00)")


def test_options_for_the_papers_give_the_figures_of_hyperdrive(
    load: Any, timing: ModuleType, folder: Path
) -> None:
    options = load("all").HYPERDRIVE
    policies = options[options.index("--policies") + 1 : options.index("--orders")]
    assert {policy for _, _, policy in timing.BOUNDS} - {"Default"} < set(policies)
    with pytest.raises(ConfigurationError, match="begin with rl"):
        timing.load(folder, ["rl"])


@pytest.mark.process
def test_it_runs_as_users_run_it(run: Any, folder: Path) -> None:
    figures = run("time_to_target", "--data", str(folder), "--orders", "2", forked=False)
    lines = [name for name in figures if name.endswith("'s mean time to target")]
    start = "lcbench one, 4 slots: "
    policies = [name.removeprefix(start).removesuffix("'s mean time to target") for name in lines]
    assert policies == ["POP", "Bandit", "EarlyTerm", "Default", "Oracle"]
    assert "accuracy: POP's mean time to target over Bandit's" in figures
