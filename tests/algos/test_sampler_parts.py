"""Parts of a sampler: its identity, and its generators."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GPSampler,
    GridSampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

from dasktune.algos.sampler_parts import digest_of, generators, identity_of, parts, reseed


def halves(number: int) -> int:
    return number // 2


DIFFERENT = [
    lambda: RandomSampler(),
    lambda: RandomSampler(seed=1),
    lambda: RandomSampler(seed=2),
    lambda: TPESampler(),
    lambda: TPESampler(seed=1),
    lambda: TPESampler(n_startup_trials=5),
    lambda: TPESampler(multivariate=True, constant_liar=True),
    lambda: TPESampler(multivariate=True, constant_liar=False),
    lambda: GPSampler(),
    lambda: GPSampler(n_startup_trials=3),
    lambda: CmaEsSampler(),
    lambda: CmaEsSampler(popsize=8),
    lambda: QMCSampler(),
    lambda: QMCSampler(seed=7),
    lambda: QMCSampler(qmc_type="halton"),
    lambda: NSGAIISampler(),
    lambda: NSGAIISampler(population_size=10),
    lambda: GridSampler({"x": [1, 2, 4, 5]}),
    lambda: GridSampler({"x": [1, 2, 4, 5]}, seed=3),
    lambda: GridSampler({"x": [1, 2, 3]}),
]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_identity_is_equal_only_for_equal_arguments() -> None:
    texts = [json.dumps(identity_of(make()), allow_nan=False) for make in DIFFERENT]
    assert len(set(texts)) == len(DIFFERENT)
    assert texts == [json.dumps(identity_of(make())) for make in DIFFERENT]


@pytest.mark.process
def test_an_identity_is_the_same_in_every_process() -> None:
    program = (
        "import json; from optuna.samplers import *;"
        "from dasktune.algos.sampler_parts import *;"
        "print(digest_of([identity_of(TPESampler(seed=3)), identity_of(NSGAIISampler())]))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    here = digest_of([identity_of(TPESampler(seed=3)), identity_of(NSGAIISampler())])
    assert int(said.stdout) == here


def test_attributes_of_all_kinds_are_told() -> None:
    thing = SimpleNamespace(
        number=np.float64(0.5),
        infinite=float("inf"),
        array=np.arange(3),
        functions=[halves, max, np.sin, partial(halves, 3)],
        choices={"b", "a"},
        seeded=np.random.default_rng(5),
        unseeded=np.random.default_rng(),
        legacy=np.random.RandomState(6),
    )
    thing.itself = thing
    found = identity_of(thing)
    assert isinstance(found, dict)
    assert found["number"] == 0.5
    assert found["array"] == [0, 1, 2]
    assert found["choices"] == ['"a"', '"b"']
    assert found["functions"][0].endswith("test_sampler_parts.halves")
    assert (found["seeded"], found["unseeded"], found["legacy"]) == (5, None, 6)
    assert found["itself"] == "..."


@pytest.mark.parametrize("sampler", [TPESampler(), NSGAIISampler(seed=1), CmaEsSampler()])
def test_reseeding_makes_every_generator_draw_the_same_again(sampler: BaseSampler) -> None:
    found = generators(sampler)
    assert len(found) == 2
    drawn = []
    for entropy in (1, 2, 1):
        reseed(found, 7, entropy)
        drawn.append([rng.random() for rng in found])
    assert drawn[0] == drawn[2] != drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_generators_of_both_kinds_are_found_wherever_they_are() -> None:
    shared = np.random.default_rng(1)
    thing = SimpleNamespace(
        deep=[{"a": (SimpleNamespace(rng=shared),)}], again=shared, old=np.random.RandomState(2)
    )
    found = generators(thing)
    assert found == [shared, thing.old]
    reseed(found, 5)
    first = [rng.random() for rng in found]
    reseed(found, 5)
    assert [rng.random() for rng in found] == first
    assert shared in list(parts(thing))
