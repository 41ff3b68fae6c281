"""Random draws of Dask and of storage clients do not affect the trainer."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from distributed.comm import core

import dasktune as dt
from dasktune.trainer.lifecycle import run_alone

DRAWS = """
import random

import botocore.retryhandler
import dask.sizeof
import distributed
import s3fs
import tenacity

from dasktune.trainer.isolation import give_own_generator


def draw():
    before = random.getstate()
    dask.sizeof.sizeof(list(range(100)))
    botocore.retryhandler.delay_exponential("rand", 2, 1)
    tenacity.wait_random(0, 1)(None)
    return random.getstate() != before


assert draw(), "or nothing is shown"
changed = give_own_generator()
assert {"dask.sizeof.random", "aiohttp.connector.random", "tenacity.wait.random"} <= set(changed)
assert not draw()
assert give_own_generator() == []
"""


@pytest.mark.process
def test_packages_draw_from_their_own_generator() -> None:
    subprocess.run([sys.executable, "-c", DRAWS], check=True)


class Walk(dt.Trainer):
    """Global random steps; Dask may draw in between."""

    def build(self, hp: Mapping[str, Any]) -> None:
        random.seed(self.seed)
        self.at = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        pass

    def train(self) -> None:
        self.at += random.random()
        if self.config["with_dask"]:
            core.random.uniform(0, 1)  # as a thread of Dask's would

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.at}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.at = state["at"]


@pytest.mark.usefixtures("dask_draws_globally")
def test_run_alone_beside_a_cluster_is_unchanged() -> None:
    found = [
        run_alone(Walk, {"lr": 0.1}, 3, config={"with_dask": with_dask}).metrics
        for with_dask in (False, True)
    ]
    assert found[0] == found[1]
