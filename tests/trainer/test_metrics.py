"""Names of metrics are read from the source of `evaluate`, or said to be unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dasktune.trainer.metrics import metric_names

NAME = "loss"


def one(self: object) -> dict[str, float]:
    return {"loss": 1.0, "accuracy": 0.5}


def several(self: Any) -> dict[str, float]:
    def inner() -> dict[str, float]:
        return {"inner": 1.0}

    if self:
        return {"loss": 1.0}
    for _ in inner():
        return {"accuracy": 1.0}
    return {}


def variable(self: object) -> dict[str, float]:
    metrics = {"loss": 1.0}
    metrics["accuracy"] = 0.5
    return metrics


def nothing(self: Any) -> dict[str, float] | None:
    if self:
        return None
    return {"loss": 1.0}


def computed(self: object) -> dict[str, float]:
    return {NAME: 1.0}


def unpacked(self: object) -> dict[str, float]:
    return {"loss": 1.0, **computed(self)}


def number(self: object) -> dict[int, float]:
    return {1: 1.0}


async def awaited(self: object) -> dict[str, float]:
    return {"loss": 1.0}


@pytest.mark.parametrize(
    ("evaluate", "names"),
    [
        (one, {"loss", "accuracy"}),
        (several, {"loss", "accuracy"}),
        (variable, set()),
        (nothing, set()),
        (computed, set()),
        (unpacked, set()),
        (number, set()),
        (awaited, set()),
        (eval("lambda self: {}"), set()),
    ],
)
def test_metric_names_are_those_of_every_return(
    evaluate: Callable[..., Any], names: set[str]
) -> None:
    assert metric_names(type("Trainer", (), {"evaluate": evaluate})) == names
