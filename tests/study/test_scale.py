"""The argument `scale` of a study: what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune._study.config import StudyConfig
from dasktune.errors import ConfigurationError
from tests.toy_trainers import Adding
from tests.worker.test_divided import Net


def config(trainer: type | None, scale: object, **options: Any) -> StudyConfig:
    return StudyConfig(trainer=trainer, name="scaled", metric="loss", scale=scale, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("needs", [None, {"GPU": 1}, [{"GPU": 1}, {"cores": 1}], lambda hp: None])
def test_scale_of_a_trainer_that_divides_is_taken(needs: object) -> None:
    assert config(Net, dt.Scale(max=4), needs=needs).scale == dt.Scale(max=4)


@pytest.mark.parametrize(
    ("trainer", "scale", "options", "message"),
    [
        (Adding, dt.Scale(max=2), {}, "Adding must be a TorchTrainer with divides = True"),
        (None, dt.Scale(max=2), {}, "scale must be None without a trainer"),
        (Net, 8, {}, r"scale must be dasktune\.Scale, got 8"),
        (Net, dt.Scale(max=2), {"needs": {"GPU": 2}}, "needs must ask for 1 device .* got 2"),
        (Net, dt.Scale(max=2), {"needs": {"cores": 4}}, "needs must ask for 1 device .* got 4"),
    ],
)
def test_scale_that_cannot_be_is_refused(
    trainer: type | None, scale: object, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        config(trainer, scale, **options)


def test_scale_is_refused_before_a_store_is_made(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with pytest.raises(ConfigurationError, match="must be a TorchTrainer with divides = True"):
        dt.create_study(Adding, name="s", metric="loss", storage=store, scale=dt.Scale(max=2))
    assert not store.exists()
