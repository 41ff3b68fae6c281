"""Tests that run the examples of docs/reinforcement-learning.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from tests.pages import as_module, python_blocks

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "reinforcement-learning.md").read_text()
CLIMBER, WANDERER, *REST = python_blocks("reinforcement-learning.md")
PASSED, NAMED, *_ = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, two_threads: Client) -> Iterator[Any]:
    """Return the module that the page is, run from its beginning to its end."""
    folder = tmp_path_factory.mktemp("page")
    text = "".join([CLIMBER, WANDERER, *REST]).replace(
        "optimize(tuner())", "optimize(tuner(), client=client)"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield as_module("climb", text, folder, client=two_threads)
    del sys.modules["climb"]


@pytest.mark.process
def test_both_trainers_of_the_page_resume_exactly(page: Any) -> None:
    for trainer in (page.Climber, page.Wanderer):
        hp = {"noise": dt.sequences.Piecewise([1.0, 0.1], boundaries=[3])}
        report = dt.check_resume(trainer, hp)
        assert report.ok, str(report)
        assert str(report) == PASSED.strip()


@pytest.mark.process
def test_a_generator_that_is_forgotten_is_named_as_the_page_says(tmp_path: Path) -> None:
    kept = [line for line in WANDERER.splitlines() if "random" not in line]
    assert len(WANDERER.splitlines()) - len(kept) == 2
    forgetful = as_module("forgetful", CLIMBER + "\n".join(kept), tmp_path)
    try:
        found = dt.check_resume(forgetful.Wanderer, {"noise": 0.0}, split=2, total=4)
    finally:
        del sys.modules["forgetful"]
    assert NAMED.strip() in str(found).splitlines()


def test_the_weights_at_the_peak_are_those_that_played_best(page: Any) -> None:
    assert page.ran.summary()["steps_executed"] == 6 + 3 * 14
    assert page.peak < 20
    assert page.rewards[page.peak] == max(page.rewards.values())
    climber = page.Climber()
    climber.config, climber.seed = {}, 7
    climber.build({})
    assert climber.play(page.weights, 1) > 100


def test_the_pop_of_the_page_looks_at_100_episodes(page: Any) -> None:
    assert (page.pop.options.window, page.pop.options.every) == (25, 12)
