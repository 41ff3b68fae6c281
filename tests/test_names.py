"""Allowed names of studies, metrics and hyper-parameters."""

from __future__ import annotations

import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError, TrainerError, name_problems
from dasktune.sequences import Constant, Piecewise
from dasktune.trainer import run_alone
from tests.toy_trainers import Adding

UNFIT = ("a\0b", "a\nb", "\x1b[31m", "a\x9b31m", "\udc80")


@pytest.mark.parametrize("name", ["loss", "../a", "ünï 編", "<b>", "a\u202eb", "'; --"])
def test_what_can_be_shown_can_be_a_name(name: str) -> None:
    assert name_problems("metric", name) == []


@pytest.mark.parametrize("name", UNFIT)
def test_no_hyper_parameter_is_named_by_what_cannot_be_shown(name: str) -> None:
    with pytest.raises(ConfigurationError, match="must have no control characters"):
        dt.Space({name: 1})
    with pytest.raises(ConfigurationError, match="must have no control characters"):
        dt.algos.Random(lambda trial: {name: 1}, trials=1, max_steps=1)
    with pytest.raises(ConfigurationError, match="must have no control characters"):
        dt.algos.Random(lambda trial: {"lr": trial.suggest_int(name, 1, 2)}, trials=1, max_steps=1)


class Naming(Adding):
    """Has a metric whose name its config says."""

    def evaluate(self) -> dict[str, float]:
        return {"loss": 0.0, self.config["metric"]: 1.0}


@pytest.mark.parametrize("name", UNFIT)
def test_no_metric_is_named_by_what_cannot_be_shown(name: str) -> None:
    with pytest.raises(ConfigurationError, match="metric must have no control characters"):
        dt.create_study(
            None, name="any", storage="memory://names", metric=name, direction="minimize"
        )
    with pytest.raises(TrainerError, match="evaluate: a metric must have no control characters"):
        run_alone(Naming, {"lr": Constant(1)}, 1, config={"metric": name})


def test_a_value_may_be_any_text_that_can_be_sent() -> None:
    assert Constant("\t\x1b\0")(0) == "\t\x1b\0"
    with pytest.raises(ConfigurationError, match=r"must have no surrogates, got '\\udc80'"):
        Constant("\udc80")
    with pytest.raises(ConfigurationError, match="must have no surrogates"):
        Piecewise(["a", "\udc80"], boundaries=[2])
