"""The ends of trials that are stored whatever that costs."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune._driver.retention.kept_ends import SWITCH, KeptEnds
from dasktune._driver.retention.value import winners
from dasktune._engine.trials import TrialRecord
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant
from dasktune.storage.retention import Keep
from dasktune.types import Direction, Objective, TrialState

LOSS = Objective.single("loss", "minimize")
ACCURACY = Objective.single("accuracy", "maximize")
BOTH = Objective(metrics=("loss", "size"), directions=(Direction.MINIMIZE,) * 2)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "on")


def trial(number: int, value: float, state: TrialState = TrialState.COMPLETE) -> TrialRecord:
    return TrialRecord(
        number=number,
        tuner=0,
        local=number,
        params={},
        sequences={"lr": Constant(0.1)},
        max_steps=1,
        state=state,
        steps=1,
        values=(value,),
    )


def stage(*trials: int, is_last: bool = True) -> Any:
    node = SimpleNamespace(requests=dict.fromkeys(trials, 0.0))
    return SimpleNamespace(is_last=is_last, node=node)


def test_ends_are_kept_until_the_best_are_known() -> None:
    ends = KeptEnds(Keep(best=2), LOSS, [trial(0, 0.5)])
    assert ends.omits(stage(2)) is None
    ends.add([trial(1, 0.7), trial(3, 0.1, TrialState.PAUSED)])
    assert ends.omits(stage(2)) == ("loss", 0.7, math.inf)
    ends.add([trial(4, 0.6)])
    assert ends.omits(stage(5)) == ("loss", 0.6, math.inf)


def test_first_of_equal_trials_is_kept() -> None:
    ends = KeptEnds(Keep(best=1), ACCURACY, [trial(3, 0.5)])
    assert ends.omits(stage(4)) == ("accuracy", -math.inf, 0.5)
    name, least, greatest = ends.omits(stage(2, 4)) or ("", 0.0, 0.0)
    assert (name, least) == ("accuracy", -math.inf)
    assert greatest < 0.5


@pytest.mark.parametrize(
    ("keep", "objective"), [(Keep(best=None), LOSS), (Keep(best=1), BOTH)], ids=["all", "several"]
)
def test_all_ends_are_kept(keep: Keep, objective: Objective) -> None:
    assert KeptEnds(keep, objective, [trial(0, 0.5)]).omits(stage(1)) is None


def test_no_end_is_kept_with_keep_none() -> None:
    assert KeptEnds(Keep(best=0), LOSS, []).omits(stage(1)) == ("loss", -math.inf, math.inf)


def test_stage_from_which_trials_go_on_is_stored() -> None:
    assert KeptEnds(Keep(best=0), LOSS, []).omits(stage(1, is_last=False)) is None


def test_switch_stores_all_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert KeptEnds(Keep(best=0), LOSS, []).omits(stage(1)) is None
    monkeypatch.setenv(SWITCH, "no")
    with pytest.raises(ConfigurationError, match="DASKTUNE_OMIT must be on or off, got 'no'"):
        KeptEnds(Keep(best=0), LOSS, [])


@pytest.mark.parametrize("objective", [LOSS, ACCURACY], ids=["minimize", "maximize"])
def test_states_of_the_final_best_trials_were_kept(objective: Objective) -> None:
    rng = random.Random(0)
    for count in (1, 3):
        keep, ended, under_way = Keep(best=count), list[TrialRecord](), list[Any]()
        ends, stored = KeptEnds(keep, objective, []), set[int]()
        numbers = list(range(60))
        rng.shuffle(numbers)
        while numbers or under_way:
            if numbers and len(under_way) < 4:
                number = numbers.pop()
                under_way.append((number, ends.omits(stage(number))))
                continue
            number, omits = under_way.pop(rng.randrange(len(under_way)))
            value = rng.choice((0.1, 0.2, 0.3, 0.4, math.nan))
            _, least, greatest = omits or ("", 0.0, 0.0)
            if omits is None or (math.isfinite(value) and not least <= value <= greatest):
                stored.add(number)
            ended.append(trial(number, value))
            ends.add(ended[-1:])
        assert {each.number for each in winners(ended, objective, keep)} <= stored
        assert len(stored) < 40
