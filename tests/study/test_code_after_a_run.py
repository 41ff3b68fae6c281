"""Workers in the driver's own process leave its classes alone: later studies find its states."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import pytest
from distributed import Client

import dasktune as dt

FACTOR = 2.0
Number = TypeVar("Number", int, float)


def scaled(value: float, factor: float = FACTOR) -> float:
    return value * factor * FACTOR


class Kind(enum.Enum):
    FAST = "fast"


@dataclass
class Settings(Generic[Number]):
    kind: Kind = Kind.FAST
    weight: float = scaled(0.5)


class Base(dt.Trainer):
    """A base class with a registry, as frameworks have it."""

    subclasses: ClassVar[list[str]] = []

    def __init_subclass__(cls) -> None:
        Base.subclasses.append(cls.__name__)

    def build(self, hp: dict[str, float]) -> None:
        self.settings, self.loss = Settings[float](), 0.0

    def train(self) -> None:
        self.loss += scaled(self.settings.weight)

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.loss}

    def state_dict(self) -> dict[str, float]:
        return {"loss": self.loss}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.loss = state["loss"]


class Derived(Base):
    def train(self) -> None:
        super().train()
        assert self.settings.kind is Kind.FAST


@pytest.mark.parametrize("trainer", [Base, Derived])
def test_a_study_after_a_run_reuses_its_states(
    trainer: type, two_threads: Client, tmp_path: Path
) -> None:
    trained = []
    for name in ("first", "second"):
        study = dt.create_study(
            trainer, name=name, metric="loss", storage=str(tmp_path), direction="minimize"
        )
        study.optimize(
            dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=3), client=two_threads, check=False
        )
        trained.append(study.summary()["steps_executed"])
        study.close()
    assert trained == [6, 0]
