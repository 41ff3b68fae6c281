"""Configs of other kinds than dicts: converted where nothing is lost, else refused."""

from __future__ import annotations

import argparse
import types
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pydantic
import pytest
import torch

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.trainer.given_config import plain_config
from dasktune.trainer.lifecycle import run_alone
from tests.toy_trainers import Adding


class Colour(Enum):
    RED = 1


@dataclass
class Layer:
    width: int = 4


@dataclass
class OfDataclass:
    rate: float = 0.5
    layers: list[Layer] = field(default_factory=lambda: [Layer(), Layer(8)])


@attrs.define
class AttrsLayer:
    width: int


@attrs.define
class OfAttrs:
    rate: float = 0.5
    layers: list[AttrsLayer] = attrs.field(factory=lambda: [AttrsLayer(4), AttrsLayer(8)])


class PydanticLayer(pydantic.BaseModel):
    width: int


class OfPydantic(pydantic.BaseModel):
    rate: float = 0.5
    layers: list[PydanticLayer] = [PydanticLayer(width=4), PydanticLayer(width=8)]


PLAIN = {"rate": 0.5, "layers": [{"width": 4}, {"width": 8}]}


@pytest.mark.parametrize(
    "given",
    [
        PLAIN,
        OfDataclass(),
        OfAttrs(),
        OfPydantic(),
        argparse.Namespace(**PLAIN),
        types.SimpleNamespace(**PLAIN),
        types.MappingProxyType(PLAIN),
        OrderedDict(PLAIN),
        {"rate": np.float32(0.5), "layers": [{"width": np.int64(4)}, Layer(8)]},
        {"rate": Fraction(1, 2), "layers": [Layer(np.int8(4)), PydanticLayer(width=8)]},  # type: ignore[arg-type]
        {"rate": torch.tensor(0.5), "layers": [AttrsLayer(4), {"width": 8}]},
    ],
    ids=lambda given: type(given).__name__,
)
def test_config_without_loss_becomes_plain(given: Any, tmp_path: Path) -> None:
    study = dt.create_study(Adding, name="n", metric="loss", storage=tmp_path, config=given)
    assert study.config == PLAIN
    assert (
        study.study_config.fingerprint()
        == dt.create_study(
            Adding, name="n", metric="loss", storage=tmp_path, config=PLAIN, load_if_exists=True
        ).study_config.fingerprint()
    )
    study.close()


def test_plain_config_reaches_the_trainer_alone_too() -> None:
    class Reads(Adding):
        def build(self, hp: Mapping[str, Any]) -> None:
            super().build(hp)
            self.total = self.config["rate"]

    assert run_alone(Reads, {"lr": 0.0}, 1, config=OfDataclass()).metrics  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (Path("data"), "write it as text, such as str(path)"),
        (Colour.RED, "write its name 'RED', and take Colour[name] in the trainer"),
        ({3, 4}, "write a list, such as sorted(values)"),
        (np.zeros(2), "write a list, such as values.tolist()"),
        (torch.nn.ReLU, "write its name as text, and look it up in the trainer"),
        (1j, "write its values as numbers, texts, lists and dicts"),
        (b"data", "write its values as numbers, texts, lists and dicts"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("holder", [lambda value: value, lambda value: [Layer(value)]])
def test_config_with_loss_is_refused_with_remedy(
    value: Any, remedy: str, holder: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as error:
        dt.create_study(
            Adding, name="n", metric="loss", storage=tmp_path, config={"part": holder(value)}
        )
    assert "config['part']" in str(error.value)
    assert str(error.value).endswith(remedy)


@pytest.mark.parametrize("given", ["conf.yaml", ["rate"], 3, Layer], ids=repr)
def test_config_that_is_no_mapping_names_the_line(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"config must be a mapping, got .*; write config"):
        dt.create_study(Adding, name="n", metric="loss", storage=tmp_path, config=given)


def test_ignored_config_stays_as_it_is() -> None:
    class Ignores(Adding):
        ignored_config = ("place",)

    place = OfDataclass()
    assert plain_config(Ignores, {"place": place})["place"] is place


def test_config_that_a_study_was_given_may_change_later(tmp_path: Path) -> None:
    given = {"rate": [0.5]}
    study = dt.create_study(Adding, name="n", metric="loss", storage=tmp_path, config=given)
    given["rate"].append(0.7)
    assert study.config == {"rate": [0.5]}
    study.close()
