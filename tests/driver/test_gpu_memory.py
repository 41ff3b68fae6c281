"""JAX must not take most of a GPU for one of several processes that train on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant
from dasktune.trainer.gpu_memory import PREALLOCATE
from tests.toy_trainers import Adding


class Refusing(Adding):
    """Refuses every trial with a text that names the rule of its process."""

    def build(self, hp: Mapping[str, Any]) -> None:
        raise ConfigurationError(f"preallocate={os.environ.get(PREALLOCATE)}")


@pytest.mark.process
def test_process_of_the_check_takes_memory_as_needed() -> None:
    with pytest.raises(ConfigurationError, match="preallocate=false"):
        dt.check_resume(Refusing, {"lr": 0.1})


def test_workers_take_memory_as_needed(one_worker: Client, tmp_path: Path) -> None:
    with closing(dt.create_study(Refusing, name="gpu", storage=tmp_path, metric="loss")) as study:
        tuner = dt.algos.Grid(dt.Space(lr=[Constant(0.1)]), max_steps=1)
        study.optimize(tuner, client=one_worker)
        assert "preallocate=false" in str(study.trials[0].error)
