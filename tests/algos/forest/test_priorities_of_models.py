"""A forest asks for the priorities of its models, and draws by them."""

from __future__ import annotations

import json
import math
import sys
from statistics import pstdev
from typing import Any

import pytest

import dasktune as dt
from dasktune.algos import ASHA, POP, Random
from dasktune.algos.forest import priority
from dasktune.algos.forest.priority import Priority
from dasktune.algos.forest.source import Forest, ForestSource
from dasktune.errors import ConfigurationError
from dasktune.space import Branch, Float, Space
from dasktune.types import Register

SPACE = Space(
    kernel=[
        Branch("steady", Space(a=Float(0.0, 1.0))),
        Branch("rough", Space(b=Float(0.0, 1.0))),
        "bare",
    ]
)


def curve(values: Any, step: int) -> float:
    """Return a loss that depends on the hyper-parameter of one model only."""
    if values["kernel"] == "rough":
        return 1.0 + math.sin(12 * values["b"]) + 0.01 / step
    return 0.5 + 0.01 * values.get("a", 0.0) + 0.01 / step


def source_of(**arguments: Any) -> ForestSource:
    return Forest(**arguments).source(SPACE, 3)


def fill(source: ForestSource, trials: int, *, step: int = 4) -> list[int]:
    """Accept as many trials of the rough model, and report them; return the models due."""
    due: list[int] = []
    first = sum(model.trials for model in source.model_weights)
    for trial in range(first, first + trials):
        source.accept(trial, {"point": {"kernel": "rough", "kernel.rough.b": trial / 40}})
        source.observe(trial, step, (math.sin(trial),))
        due += source.due_models()
    return due


def test_a_question_is_asked_when_losses_have_grown_by_a_quarter() -> None:
    source = source_of()
    counts = []
    for _ in range(20):
        if fill(source, 1) == [1]:
            counts.append(len(source.model_question(1).losses))
    assert counts == [4, 5, 7, 9, 12, 15, 19]


def test_a_question_has_finite_losses_of_one_rung() -> None:
    source = source_of()
    fill(source, 6, step=4)
    source.observe(0, 16, (0.5,))
    source.accept(6, {"point": {"kernel": "rough", "kernel.rough.b": 0.9}})
    source.observe(6, 4, (math.inf,))
    assert len(source.model_question(1).losses) == 6
    for trial in range(1, 4):
        source.observe(trial, 16, (0.1,))
    assert source.due_models() == [1], "there are enough on the higher rung"
    assert len(source.model_question(1).losses) == 4


def test_losses_of_all_models_are_the_measure() -> None:
    source = source_of()
    fill(source, 6)
    alone = max(source.model_question(1).losses)
    source.accept(6, {"point": {"kernel": "bare"}})
    source.observe(6, 4, (1000.0,))
    assert max(source.model_question(1).losses) < alone / 100


def test_models_are_weighted_by_both_ranks() -> None:
    source = source_of()
    # Unknown priorities rank highest; a model with nothing to search has 0.
    assert [model.priority for model in source.model_weights] == [None, None, 0.0]
    assert [model.weight for model in source.model_weights] == pytest.approx(
        [5 / 12, 5 / 12, 2 / 12]
    )
    source.learn_priority(0, Priority(shortest=1.0, longest=2.0))
    source.learn_priority(1, Priority(shortest=0.1, longest=2.0))
    assert [model.priority for model in source.model_weights] == pytest.approx([0.5, 9.5, 0.0])
    assert [model.weight for model in source.model_weights] == pytest.approx(
        [4.5 / 12, 5.5 / 12, 2 / 12]
    )


def test_a_trial_has_the_rank_of_its_model_when_it_was_drawn() -> None:
    tuner = Random(SPACE, trials=30, max_steps=4, sampler=Forest())
    source: Any = tuner.source
    first = [each for each in tuner.ask(9) if isinstance(each, Register)]
    known = {"steady": 0.75, "rough": 0.75, "bare": 0.0}
    assert [each.model_rank for each in first] == [known[kernel_of(each)] for each in first]
    source.learn_priority(0, Priority(shortest=1.0, longest=2.0))
    source.learn_priority(1, Priority(shortest=0.1, longest=2.0))
    later = [each for each in tuner.ask(9) if isinstance(each, Register)]
    known = {"steady": 0.625, "rough": 0.875, "bare": 0.0}
    assert [each.model_rank for each in later] == [known[kernel_of(each)] for each in later]
    assert {kernel_of(each) for each in later} >= {"steady", "rough"}
    assert [model.rank for model in tuner.model_weights] == [0.625, 0.875, 0.0]


def kernel_of(register: Register) -> str:
    """Return the model of a trial."""
    return str(register.point["kernel"])


def test_models_have_no_rank_without_heuristics() -> None:
    source = source_of(complexity=False, priority=False)
    source.accept(0, source.propose(0))
    assert source.model_rank(0) is None
    assert [model.rank for model in source.model_weights] == [None] * 3


def test_either_heuristic_can_be_switched_off() -> None:
    source = source_of(complexity=False)
    source.learn_priority(0, Priority(shortest=1.0, longest=2.0))
    assert [model.weight for model in source.model_weights] == pytest.approx([2 / 6, 3 / 6, 1 / 6])
    assert source_of(complexity=False).learns
    assert not source_of(priority=False).learns


def test_a_failed_question_keeps_the_priority_before() -> None:
    source = source_of()
    source.learn_priority(0, Priority(shortest=1.0, longest=2.0))
    source.learn_priority(0, None)
    assert source.model_weights[0].priority == 0.5


def test_a_restored_forest_asks_the_same() -> None:
    source = source_of()
    fill(source, 9)
    source.learn_priority(1, Priority(shortest=0.1, longest=2.0))
    again = source_of()
    again.restore(json.loads(json.dumps(source.snapshot(), allow_nan=False)))
    assert again.model_weights == source.model_weights
    assert again.model_question(1) == source.model_question(1)
    assert again.propose(9) == source.propose(9)
    assert fill(again, 6) == fill(source, 6)


def observed(source: ForestSource, kernel: str, losses: list[float]) -> None:
    """Report losses of new trials of a model at one step."""
    first = sum(model.trials for model in source.model_weights)
    for trial, loss in enumerate(losses, start=first):
        inner = {"steady": {"kernel.steady.a": 0.5}, "rough": {"kernel.rough.b": 0.5}}
        source.accept(trial, {"point": {"kernel": kernel, **inner.get(kernel, {})}})
        source.observe(trial, 4, (loss,))
        assert source.due_models() == [], "no worker is asked"


def test_deviation_counts_only_losses_below_the_median() -> None:
    source = source_of(priority="deviation", complexity=False)
    assert source.learns
    observed(source, "rough", [0.0, 2.0, 4.0])
    assert [model.priority for model in source.model_weights] == [None, None, 0.0]
    observed(source, "rough", [6.0])
    observed(source, "steady", [5.0, 50.0, 500.0, 5e9])
    # The median is 5.5: 0, 2, 4 and 5.5 of the one, and 5 and three times 5.5 of the other.
    clipped = [0.0, 2.0, 4.0, 5.5], [5.0, 5.5, 5.5, 5.5]
    scale = pstdev([*clipped[0], *clipped[1]])
    priorities = [model.priority for model in source.model_weights]
    assert priorities == pytest.approx([pstdev(clipped[1]) / scale, pstdev(clipped[0]) / scale, 0])
    assert [model.rank for model in source.model_weights] == [0.5, 1.0, 0.0]


def test_deviations_are_restored_with_the_forest() -> None:
    source = source_of(priority="deviation")
    observed(source, "rough", [0.0, 2.0, 4.0, math.inf, 7.0])
    observed(source, "steady", [5.0, 50.0, 500.0, 5e9])
    again = source_of(priority="deviation")
    again.restore(json.loads(json.dumps(source.snapshot(), allow_nan=False)))
    assert again.model_weights == source.model_weights
    assert [again.propose(trial) for trial in range(9, 40)] == [
        source.propose(trial) for trial in range(9, 40)
    ]


def test_equal_losses_have_no_deviation() -> None:
    source = source_of(priority="deviation")
    observed(source, "rough", [2.0] * 5)
    assert [model.priority for model in source.model_weights] == [None, 0.0, 0.0]


def test_unknown_priority_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="priority must be True, False or 'deviation'"):
        Forest(priority="variance")


def test_missing_scikit_learn_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'dasktune\[forest\]'"):
        Forest()
    Forest(priority=False)
    Forest(priority="deviation")


@pytest.mark.parametrize("tuner", ["random", "asha", "pop"])
def test_the_model_that_varies_is_searched_more(
    tuner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priority, "FITS", 8)  # enough for so clear a difference
    forest = Forest(complexity=False)
    made: Any = {
        "random": lambda: Random(SPACE, trials=30, max_steps=4, sampler=forest),
        "asha": lambda: ASHA(SPACE, trials=30, max_steps=16, sampler=forest),
        "pop": lambda: POP(SPACE, trials=30, max_steps=8, every=2, sampler=forest),
    }[tuner]()
    dt.simulate(made, curve, workers=3)
    steady, rough, bare = made.source.model_weights
    assert max(steady.priority or 0.0, bare.priority) < 0.05 < rough.priority
    assert rough.weight == 1 / 2
