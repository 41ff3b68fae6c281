"""Global generators: one number seeds them all."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from dasktune.trainer.generators import global_states, restore_global, seed_global


@pytest.fixture(autouse=True)
def _same_after() -> Iterator[None]:
    before = global_states()
    yield
    restore_global(before)


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1, 2**31, 2**32 - 1])
def test_seed_global_seeds_each_library_with_the_number(seed: int) -> None:
    seed_global(seed)
    drawn = random.random(), np.random.random(), torch.rand(()).item()
    python, torches = random.Random(seed), torch.Generator().manual_seed(seed)
    expected = np.random.RandomState(seed).random()
    assert drawn == (python.random(), expected, torch.rand((), generator=torches).item())


def test_seed_beyond_those_of_numpy_counts_modulo_their_number() -> None:
    seed_global(2**32 + 7)
    assert np.random.random() == np.random.RandomState(7).random()
