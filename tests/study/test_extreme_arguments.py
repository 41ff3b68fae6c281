"""Extreme arguments of users: refused with what must hold and what came."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError, DasktuneError
from dasktune.graph.keys import encode_at
from dasktune.sequences import Constant, Exponential
from dasktune.sequences.core import MOST_VALUES
from dasktune.trainer.given_config import MOST_NESTED

HUGE = 10**400
UNPRINTABLE = 10**5000


class Counter(dt.Trainer):
    def build(self, hp: Mapping[str, Any]) -> None:
        self.steps = 0

    def setup(self, hp: Mapping[str, Any]) -> None:
        pass

    def train(self) -> None:
        self.steps += 1

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.steps)}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


def nested(depth: int) -> dict[str, object]:
    config: dict[str, object] = {}
    for _ in range(depth):
        config = {"a": config}
    return config


def holding_itself() -> dict[str, object]:
    config: dict[str, object] = {}
    config["a"], config["b"] = [config], [config]
    return config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"checkpoint_every": 1.5}, "checkpoint_every must be an int >= 1, got 1.5"),
        ({"checkpoint_every": True}, "checkpoint_every must be an int >= 1, got True"),
        ({"checkpoint_every": "x"}, "checkpoint_every must be an int >= 1, got 'x'"),
        ({"config": nested(5000)}, "config must be nested at most 100 deep"),
        ({"config": holding_itself()}, "and must not hold itself"),
        ({"depends_on": [nested(5000)]}, "depends_on must rest on values that are not nested"),
        ({"budget": "9" * 400 + " GB"}, "at most 1e+03 PB, got '9999"),
        ({"budget": HUGE}, "at most 1e+03 PB, got 1000"),
        ({"budget": UNPRINTABLE}, "got a int that cannot be shown"),
        ({"needs": {"GPU": float("inf")}}, "needs must be finite numbers > 0 by name, got {'GPU'"),
        ({"needs": {"GPU": HUGE}}, "needs must be finite numbers > 0 by name, got {'GPU'"),
        ({"needs": {3: 1}}, "needs must be finite numbers > 0 by name, got {3: 1}"),
        ({"needs": {"": 1}}, "needs must be finite numbers > 0 by name, got {'': 1}"),
        ({"storage": "reference://"}, "cannot open reference://: "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_create_study_refuses_extreme_argument(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(DasktuneError) as caught:
        dt.create_study(
            Counter, name="extreme", metric="loss", **{"storage": tmp_path, **arguments}
        )
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500


def test_create_study_takes_nested_config(tmp_path: Path) -> None:
    shared = nested(MOST_NESTED - 3)
    config = {"a": shared, "b": [shared, shared]}
    dt.create_study(Counter, name="n", metric="loss", storage=tmp_path, config=config).close()


def test_preview_refuses_checkpoint_every_of_another_type() -> None:
    with pytest.raises(ConfigurationError, match="checkpoint_every must be an int >= 1, got 'x'"):
        dt.preview(dt.Space(lr=[0.1]), max_steps=4, checkpoint_every="x")  # type: ignore[call-overload]


@pytest.mark.parametrize("value", [HUGE, [HUGE], {"loss": HUGE}, [UNPRINTABLE]], ids=type)
def test_tell_refuses_number_that_is_too_large(tmp_path: Path, value: object) -> None:
    study = dt.create_study(None, name="n", metric="loss", storage=tmp_path)
    trial = study.ask(dt.algos.Random(dt.Space(lr=dt.Float(0.1, 1.0)), trials=1, max_steps=2))
    with pytest.raises(ConfigurationError, match="as numbers that fit into a float, got"):
        study.tell(trial, value)
    study.close()


@pytest.mark.parametrize("stop", [MOST_VALUES + 1, 10**12, UNPRINTABLE], ids=int.bit_length)
def test_values_refuses_more_than_fit_into_memory(stop: int) -> None:
    with pytest.raises(ConfigurationError, match="values must be asked for at most 100,000,000"):
        Constant(1).values(0, stop)


@pytest.mark.parametrize("steps", [range(4)])
def test_exponential_from_zero_shows_what_its_key_says(steps: range) -> None:
    sequence = Exponential(0.0, gamma=-0.5)
    shown = [sequence(step) for step in steps] + sequence.values(0, 4)
    assert not np.signbit(shown).any()
    assert {encode_at({"lr": sequence}, step) for step in steps} == {
        encode_at({"lr": Constant(0.0)}, 0)
    }
